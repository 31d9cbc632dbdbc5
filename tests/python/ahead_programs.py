# SPDX-License-Identifier: Apache-2.0
"""Loops over loaders with workers, which print what they train. Run by ahead_test.py, plain and with weights in rows; then
they also say, on stderr and as JSON, what of their batches was announced."""

import collections
import json
import os
import queue
import sys

import torch
from torch.utils.data import DataLoader

ROWS = 20000
RESULTS = {}  # of the program now running: what it says on stderr


class Clicks(torch.utils.data.Dataset):
    """`fails`: the sample that cannot be read; `dies`: the one that ends the worker that reads it."""

    def __init__(self, count, fails=None, dies=None):
        self.count, self.fails, self.dies = count, fails, dies

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if number == self.fails:
            raise ValueError(f"sample {number} cannot be read")
        if number == self.dies:
            os.kill(os.getpid(), 9)
        random = torch.Generator().manual_seed(number)
        return {
            "user": torch.randint(0, ROWS, (4,), generator=random),
            "more": (torch.randint(0, ROWS // 2, (6,), generator=random), torch.tensor(number % 2 * 1.0)),
        }


class Stream(torch.utils.data.IterableDataset):
    """Of which workers have parts of different lengths."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        for number in range(worker.id, 16 * 40, worker.num_workers * (worker.id + 1)):
            yield Clicks(10000)[number]


class Model(torch.nn.Module):
    def __init__(self, **more):
        super().__init__()
        self.users = torch.nn.EmbeddingBag(ROWS, 16, mode="sum", **more)
        self.items = torch.nn.Embedding(ROWS, 16, **more)

    def forward(self, batch):
        items, wanted = batch["more"]
        # Two columns of one field, and one with what its ids are in the common table.
        both = self.items(items[:, 2:4]).sum(1) + self.items(items[:, 0] + ROWS // 2)
        return (self.users(batch["user"]) * both).sum(1).sub(wanted).pow(2).mean()


def counts(model):
    """(rows waited for, rows that came ahead) of tables; None without."""
    rows = [getattr(layer.weight, "rows", None) for layer in (model.users, model.items)]
    if None in rows or not all(one.in_table for one in rows):
        return None
    found = [one._table.counts() for one in rows]
    return [[one.fetched for one in found], [one.prefetched for one in found]]


class Training:
    def __init__(self, name, **more):
        torch.manual_seed(1)
        self.name, self.model = name, Model(**(more or {"sparse": True}))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.steps, self.learned = 0, None

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.model(batch)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        print(self.name, self.steps, loss.item())
        if self.steps == 8:
            self.learned = counts(self.model)

    def end(self):
        weights = [layer.weight.detach().double().sum().item() for layer in (self.model.users, self.model.items)]
        print(self.name, "end", weights)
        found = counts(self.model)
        if found is not None:
            ahead = sys.modules.get("tidepool_rows.ahead")
            tables = [layer.weight.rows._table for layer in (self.model.users, self.model.items)]
            found = {"learned": self.learned, "end": found, "streams": len(ahead._streams) if ahead else 0}
            found["waiting"] = [len(table.ahead.announced) if table.ahead else 0 for table in tables]
            print(json.dumps({self.name: {**found, **RESULTS}}), file=sys.stderr, flush=True)
            RESULTS.clear()


def loader(data, **more):
    context = os.environ.get("START", "fork")
    return DataLoader(data, **{"batch_size": 16, "num_workers": 2, "multiprocessing_context": context, **more})


def epochs():
    training, batches = Training("epochs"), loader(Clicks(16 * 12))
    for _ in range(2):
        for batch in batches:
            training.step(batch)
    training.end()


def dense_gradients():
    training = Training("dense_gradients", sparse=False)
    for batch in loader(Clicks(16 * 20)):
        training.step(batch)
    training.end()


def persistent():
    training, batches = Training("persistent"), loader(Clicks(16 * 12), persistent_workers=True)
    for epoch in range(4):
        for number, batch in enumerate(batches):
            training.step(batch)
            if epoch % 2 == 1 and number == 5:
                break
    training.end()


def iterable():
    training = Training("iterable")
    for batch in loader(Stream()):
        training.step(batch)
    training.end()


def failing():
    training = Training("failing")
    batches = iter(loader(Clicks(16 * 20, fails=16 * 14 + 3)))
    while True:
        try:
            training.step(next(batches))
        except ValueError as error:
            print("failing", str(error).splitlines()[-1])
        except StopIteration:
            break
    training.end()


def dying():
    training = Training("dying")
    try:
        for batch in loader(Clicks(16 * 40, dies=16 * 30), prefetch_factor=1):
            training.step(batch)
            if training.steps > 25:  # how many come before the signal is chance
                print_nothing()
    except RuntimeError as error:
        print("dying", "DataLoader worker" in str(error))


def print_nothing():
    Training.step = lambda self, batch: self.model(batch)


def dropped():
    training = Training("dropped")
    batches = iter(loader(Clicks(16 * 20)))
    for _ in range(10):
        training.step(next(batches))
    arrivals = batches._data_queue
    while len(getattr(arrivals, "taken", range(99))) < batches._tasks_outstanding:  # until all are ready
        arrivals._reader.poll(None)
        arrivals.take_what_has_come()
    training.step(next(batches))
    ahead = sys.modules.get("tidepool_rows.ahead")
    if ahead is not None and ahead._streams:
        RESULTS["announced"] = list(ahead._streams[0].announced)
    del batches
    training.end()


def several():
    training, tests = Training("several"), loader(Clicks(16 * 4), num_workers=1)
    for one, other in zip(loader(Clicks(16 * 16)), loader(Clicks(16 * 18), prefetch_factor=4)):
        training.step(one)
        training.step(other)
        if training.steps % 10 == 0:
            with torch.no_grad():
                print("several", [training.model(batch).item() for batch in tests])
    training.end()


def late():
    """Used when the next one has been fetched."""
    training, waiting = Training("late"), collections.deque()
    for batch in loader(Clicks(16 * 20)):
        waiting.append(batch)
        if len(waiting) > 1:
            training.step(waiting.popleft())
    training.end()


def others():
    """What is looked up is not what is in the batches, or only at first."""
    training = Training("others")
    for batch in loader(Clicks(16 * 30)):
        if training.steps >= 10:
            batch["user"] = batch["user"] * 7 % ROWS
            batch["more"][0].copy_(batch["more"][0].flip(0) * 3 % (ROWS // 2))
        training.step(batch)
        if training.steps == 20:
            RESULTS["then"] = counts(training.model)
    training.end()


def pinned():
    """With the thread that copies batches into pinned memory, which here copies nothing."""
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = lambda *_: None
    torch.utils.data._utils.pin_memory.pin_memory = lambda data, *_: data
    training, batches = Training("pinned"), loader(Clicks(16 * 20), pin_memory=True)
    batches = iter(batches)
    print("pinned", isinstance(batches._data_queue, queue.Queue))
    for batch in batches:
        training.step(batch)
    training.end()


def main():
    torch.set_num_threads(1)
    torch.multiprocessing.set_forkserver_preload(["torch"])  # where START is that
    if "tidepool_rows" in sys.modules and "--measured" not in sys.argv:
        from tidepool_rows import ahead_policy

        ahead_policy.Worth.announces, ahead_policy.Worth.rests = True, False  # whatever it costs
    for name in sys.argv[1].split(","):
        globals()[name]()


if __name__ == "__main__":
    main()
