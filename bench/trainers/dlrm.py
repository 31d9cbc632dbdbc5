# SPDX-License-Identifier: Apache-2.0
"""A small recommendation model in the manner of DLRM, in plain PyTorch.

Eight embedding tables (1 GB), Zipf-distributed ids, EmbeddingBag sums, bottom and top MLP, sparse optimizer.
Prints every loss to the last digit, so that two runs can be compared; deterministic: fixed seeds, and one thread if not told otherwise.
With `--device cuda` the tables stay in host memory, and the layers train on the GPU, fed from pinned memory.
"""

import argparse
import json
import os
import time

import numpy
import torch


def zipf_ranks(generator, exponent, rows, shape):
    """Ranks 0..rows-1 with P(rank) ~ (rank+1)^-exponent, by inverting the continuous distribution."""
    u = generator.random(shape)
    power = 1.0 - exponent
    x = ((rows + 1.0) ** power - 1.0) * u + 1.0
    return numpy.minimum(x ** (1.0 / power) - 1.0, rows - 1).astype(numpy.int64)


def scatter(ranks, rows, table):
    """A fixed permutation of the ids of each table (multiplication by a number coprime to the row count), so
    that popular ids lie anywhere, as hashed ids do."""
    factor = 2654435761 + 2 * table
    while numpy.gcd(factor, rows) != 1:
        factor += 1
    return (ranks * (factor % rows) + 7919 * table) % rows


class Model(torch.nn.Module):
    def __init__(self, tables, rows, dim, dense, device):
        super().__init__()
        self.device = device
        self.tables = torch.nn.ModuleList()
        for _ in range(tables):
            table = torch.nn.EmbeddingBag(
                rows, dim, mode="sum", sparse=True, _weight=torch.empty(rows, dim)
            )
            torch.nn.init.uniform_(table.weight, -0.05, 0.05)
            self.tables.append(table)
        self.bottom = torch.nn.Sequential(
            torch.nn.Linear(dense, 64), torch.nn.ReLU(), torch.nn.Linear(64, dim), torch.nn.ReLU()
        )
        self.top = torch.nn.Sequential(
            torch.nn.Linear(dim + (tables + 1) ** 2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )
        self.bottom.to(device)
        self.top.to(device)

    def forward(self, dense, ids):
        low = self.bottom(dense)
        looked_up = torch.stack([table(ids[i]) for i, table in enumerate(self.tables)], dim=1)
        vectors = torch.cat([low.unsqueeze(1), looked_up.to(self.device)], dim=1)
        # DLRM's interaction: the dot product of every pair of the vectors.
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([low, products], dim=1)).squeeze(1)


DENSE_FEATURES = 13


def batch(generator, options):
    """Ids of each table, features, and labels that can be learnt: from one feature and the parity of one table's first id."""
    shape = (options.batch, options.bag)
    ids = [
        torch.from_numpy(scatter(zipf_ranks(generator, options.zipf, options.rows, shape), options.rows, t))
        for t in range(options.tables)
    ]
    features = torch.from_numpy(generator.standard_normal((options.batch, DENSE_FEATURES), dtype=numpy.float32))
    return ids, features, ((features[:, 0] + (ids[0][:, 0] % 2) - 0.5) > 0).float()


class Batches(torch.utils.data.Dataset):
    """The same batches, whichever process makes them, in whatever order."""

    def __init__(self, options):
        self.options = options

    def __len__(self):
        return self.options.steps

    def __getitem__(self, step):
        return batch(numpy.random.default_rng([7, step]), self.options)


def batches(options):
    """Batches in host memory; pinned if they go on to a GPU."""
    pinned = options.device != "cpu"
    if options.workers > 0:
        yield from torch.utils.data.DataLoader(
            Batches(options), batch_size=None, num_workers=options.workers, pin_memory=pinned
        )
        return
    generator = numpy.random.default_rng(7)
    for _ in range(options.steps):
        ids, *rest = batch(generator, options)
        yield ids, *(part.pin_memory() if pinned else part for part in rest)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
    "sparse_adam": lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.001),
}


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--bag", type=int, default=4, help="ids a sample and table")
    parser.add_argument("--zipf", type=float, default=1.05)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="sgd", help="of the tables")
    parser.add_argument("--workers", type=int, default=0, help="forked processes that make the batches (0: none)")
    parser.add_argument("--device", default="cpu", help="where the layers train; the tables stay in host memory")
    parser.add_argument("--losses-only", action="store_true", help="print nothing that varies")
    return parser.parse_args()


def main():
    options = parse_options()
    # cuBLAS adds in the same order each time only if its workspace is of a fixed size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(options.threads)
    torch.manual_seed(20240229)
    torch.use_deterministic_algorithms(True)
    model = Model(options.tables, options.rows, options.dim, DENSE_FEATURES, options.device)
    sparse = OPTIMIZERS[options.optimizer](model.tables.parameters())
    dense = torch.optim.SGD([*model.bottom.parameters(), *model.top.parameters()], lr=0.05)
    loss_of = torch.nn.BCEWithLogitsLoss()

    losses = []
    began = time.monotonic()
    for ids, features, labels in batches(options):
        features, labels = (part.to(options.device, non_blocking=True) for part in (features, labels))
        loss = loss_of(model(features, ids), labels)
        sparse.zero_grad(set_to_none=True)
        dense.zero_grad(set_to_none=True)
        loss.backward()
        sparse.step()
        dense.step()
        losses.append(loss.item())
    seconds = time.monotonic() - began
    if options.losses_only:
        print(*losses)
        return
    print(
        json.dumps(
            {
                "steps": options.steps,
                "train_seconds": round(seconds, 3),
                "steps_per_second": round(options.steps / seconds, 2),
                "table_bytes": sum(table.weight.numel() * 4 for table in model.tables),
                "losses": [repr(x) for x in losses],
            }
        )
    )


if __name__ == "__main__":
    main()
