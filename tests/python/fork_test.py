# SPDX-License-Identifier: Apache-2.0
"""DataLoader with worker processes, and what forked children can do to tables: nothing."""

import gc
import os
import unittest

import numpy
import torch

import tidepool
import tidepool.torch
from places import TIERS, Everywhere

ROWS, DIM = 2000, 8


class Samples(torch.utils.data.Dataset):
    """Ids and a label. It holds the module, as a careless data set might."""

    def __init__(self, module=None):
        self.module = module

    def __len__(self):
        return 320

    def __getitem__(self, number):
        random = torch.Generator().manual_seed(number)
        return torch.randint(ROWS, (6,), generator=random), torch.tensor([float(number % 2)])


def in_child(act):
    """The text that act() gives, run in a forked child that lets go of all it has."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(act()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


class Forks(unittest.TestCase):
    def setUp(self):
        self.places = Everywhere()
        self.addCleanup(self.places.close)

    def train(self, workers, tier):
        torch.manual_seed(5)
        module = tidepool.torch.EmbeddingBag(
            ROWS, DIM, mode="sum", space=self.places.space, tier=tier, dram="32K", optimizer="adagrad", lr=0.1
        )
        model = torch.nn.Sequential(module, torch.nn.Linear(DIM, 1))
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        losses = []
        loader = torch.utils.data.DataLoader(Samples(module), batch_size=32, num_workers=workers)
        for _ in range(2):
            for ids, label in loader:
                module.prefetch(ids)
                optimizer.zero_grad()
                loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ids), label)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, module.weight

    def test_loaders_with_workers(self):
        reference = None
        for tier in TIERS.values():
            for workers in (0, 2):
                losses, weight = self.train(workers, tier)
                self.assertEqual(len(losses), 20)
                reference = reference or (losses, weight)
                self.assertEqual(losses, reference[0])
                self.assertTrue(torch.equal(weight, reference[1]))

    def test_children_are_refused(self):
        ids, offsets = numpy.arange(10), numpy.array([0, 10])
        for tier in TIERS.values():
            table = tidepool.Table(self.places.space, "mine", ROWS, DIM, tier=tier, dram="32K")

            def look():
                try:
                    return table.bag(ids, offsets)
                except tidepool.Unusable as error:
                    return error

            self.assertIn("belongs to process", in_child(look))
            table.bag(ids, offsets)

    def test_the_end_of_a_child_is_not_that_of_the_tables(self):
        ids, offsets = numpy.arange(ROWS), numpy.array([0, ROWS])
        tables = [
            tidepool.Table(self.places.space, "mine", ROWS, DIM, tier=tier, dram="32K", init=("normal", 0, 1))
            for tier in TIERS.values()
        ]
        before = [table.bag(ids, offsets) for table in tables]

        def end():
            token = tables[2].prefetch
            for table in tables:
                table.close()
            tables.clear()
            self.places.space.close()
            del token
            gc.collect()
            return "ended"

        self.assertEqual(in_child(end), "ended")
        for table, expected in zip(tables, before):
            numpy.testing.assert_array_equal(table.bag(ids, offsets), expected)


if __name__ == "__main__":
    unittest.main()
