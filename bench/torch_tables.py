# SPDX-License-Identifier: Apache-2.0
"""Embedding tables in PyTorch: tidepool.torch in one tier beside torch.nn.EmbeddingBag all in DRAM, in one process.

    torch_tables.py forward|sgd|adagrad [--far SPEC] [--rounds N] [--rows N] ...

Rounds alternate between the ways; every way has batches of its own each round, drawn before the clock runs. Ids are
Zipf-distributed, ranks scattered over the rows. Prints JSON: seconds a batch for each way and round.
"""

import argparse
import json
import time

import numpy
import torch

import tidepool
import tidepool.torch

DENSE = 16  # width of the hidden layer of the head: small, as the tables are what is measured


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("forward", "sgd", "adagrad"))
    parser.add_argument("--far", metavar="SPEC", help="where Tidepool's tables are; local memory if left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=10, help="in a round")
    parser.add_argument("--warm", type=int, default=400, help="batches before the first round")
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--bags", type=int, default=2048)
    parser.add_argument("--length", type=int, default=26, help="rows a bag")
    parser.add_argument("--skew", type=float, default=1.05)
    parser.add_argument("--dram", default="10%")
    parser.add_argument("--ahead", type=int, default=4)
    return parser.parse_args()


class Draw:
    """Batches: for each table (ids, offsets); offsets have the last one."""

    def __init__(self, options):
        self.options = options
        weights = numpy.arange(1, options.rows + 1, dtype=numpy.float64) ** -options.skew
        self.reach = numpy.cumsum(weights)
        self.random = numpy.random.default_rng(1)
        self.offsets = torch.arange(options.bags + 1) * options.length

    def one(self):
        options, parts = self.options, []
        for table in range(options.tables):
            drawn = self.random.random(options.bags * options.length) * self.reach[-1]
            rank = numpy.minimum(numpy.searchsorted(self.reach, drawn), options.rows - 1)
            ids = (rank * 1_000_000_007 + table * 77_777) % options.rows
            parts.append((torch.from_numpy(ids), self.offsets))
        return parts

    def many(self, count):
        return [self.one() for _ in range(count)]


def head(options):
    torch.manual_seed(2)
    return torch.nn.Sequential(
        torch.nn.Linear(options.tables * options.dim, DENSE), torch.nn.ReLU(), torch.nn.Linear(DENSE, 1)
    )


class Peer:
    """torch.nn.EmbeddingBag, a module a table."""

    def __init__(self, options):
        self.kind = options.kind
        self.modules = torch.nn.ModuleList(
            torch.nn.EmbeddingBag(
                options.rows, options.dim, mode="sum", sparse=True, include_last_offset=True,
                _weight=torch.empty(options.rows, options.dim).uniform_(-0.01, 0.01),
            )
            for _ in range(options.tables)
        )
        self.head = head(options)
        parameters = list(self.modules.parameters())
        if options.kind == "adagrad":
            self.optimizer = torch.optim.Adagrad(parameters, lr=0.01)
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=0.01)
        self.dense = torch.optim.SGD(self.head.parameters(), lr=0.01)

    def pooled(self, batch):
        return torch.cat([module(*part) for module, part in zip(self.modules, batch)], 1)

    def step(self, batch, wanted):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(self.head(self.pooled(batch)), wanted)
        self.optimizer.zero_grad()
        self.dense.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.dense.step()

    def run(self, batches, wanted):
        if self.kind == "forward":
            with torch.no_grad():
                for batch in batches:
                    [module(*part) for module, part in zip(self.modules, batch)]
        else:
            for batch in batches:
                self.step(batch, wanted)


class Ours:
    """tidepool.torch, the same model."""

    def __init__(self, options):
        self.kind = options.kind
        far = [options.far] if options.far else []
        self.space = tidepool.Space(far=far, timeout=60)
        self.collection = tidepool.torch.EmbeddingBagCollection(
            [
                tidepool.torch.EmbeddingBag(
                    options.rows, options.dim, mode="sum", include_last_offset=True, space=self.space,
                    dram=options.dram, optimizer="adagrad" if options.kind == "adagrad" else "sgd", lr=0.01,
                    init=("uniform", -0.01, 0.01, number),
                )
                for number in range(options.tables)
            ]
        )
        self.head = head(options)
        self.dense = torch.optim.SGD(self.head.parameters(), lr=0.01)

    def step(self, batch, wanted):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(self.head(self.collection(batch)), wanted)
        self.dense.zero_grad()
        loss.backward()
        self.dense.step()

    def one(self, batch, wanted):
        if self.kind == "forward":
            with torch.no_grad():
                self.collection(batch)
        else:
            self.step(batch, wanted)

    def run(self, batches, wanted):
        for batch in batches:
            self.one(batch, wanted)

    def run_ahead(self, batches, wanted, ahead):
        """All but the last `ahead` batches, which are announced alone. The first were announced before."""
        for number in range(len(batches) - ahead):
            self.collection.prefetch(batches[number + ahead])
            self.one(batches[number], wanted)

    def forget(self):
        for module in self.collection.bags:
            module._ahead.clear()

    def counts(self):
        each = [module.table.counts() for module in self.collection.bags]
        return {
            name: sum(getattr(counts, name) for counts in each)
            for name in ("lookups", "hits", "in_place", "fetched", "prefetched", "dram_bytes", "metadata_bytes")
        }


def timed(act):
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def main():
    options = parse()
    draw, wanted = Draw(options), torch.rand(options.bags, 1).round()
    peer, ours = Peer(options), Ours(options)

    def torch_way(threads):
        torch.set_num_threads(threads)
        batches = draw.many(options.batches)
        return timed(lambda: peer.run(batches, wanted))

    def tidepool_way():
        torch.set_num_threads(2)
        batches = draw.many(options.batches)
        return timed(lambda: ours.run(batches, wanted))

    def tidepool_ahead():
        torch.set_num_threads(2)
        batches = draw.many(options.batches + options.ahead)
        for batch in batches[: options.ahead]:
            ours.collection.prefetch(batch)
        seconds = timed(lambda: ours.run_ahead(batches, wanted, options.ahead))
        ours.forget()
        return seconds

    ways = {"torch-1": lambda: torch_way(1), "torch-2": lambda: torch_way(2), "tidepool": tidepool_way}
    if options.far and options.ahead:
        ways["tidepool-ahead"] = tidepool_ahead
    for _ in range(options.warm):
        ours.run(draw.many(1), wanted)
    for way in ways.values():  # once each before it counts
        way()
    before, seconds = ours.counts(), {name: [] for name in ways}
    names = list(ways)
    for number in range(options.rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            seconds[name].append(ways[name]() / options.batches)
    after = ours.counts()
    lookups = after["lookups"] - before["lookups"]
    print(
        json.dumps(
            {
                "kind": options.kind,
                "far": options.far or "local",
                "settings": {key: value for key, value in vars(options).items() if key not in ("kind", "far")},
                "rows_a_batch": options.tables * options.bags * options.length,
                "seconds_a_batch": seconds,
                "served_from_dram": (after["hits"] - before["hits"]) / lookups,
                "dram_bytes": after["dram_bytes"],
                "metadata_bytes": after["metadata_bytes"],
            }
        )
    )


if __name__ == "__main__":
    main()
