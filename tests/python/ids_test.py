# SPDX-License-Identifier: Apache-2.0
"""Tables whose hashed ids come and go, in every tier against a dict: the same bits after each call."""

import tempfile
import threading
import unittest

import numpy

import tidepool
from places import TIERS, Everywhere

DIM, LR = 6, numpy.float32(0.5)


class Model:
    """What a table with hashed ids and plain SGD is to do; rows begin as zeros."""

    def __init__(self, admit_after=1):
        self.rows, self.last, self.uses, self.steps = {}, {}, {}, 0
        self.admit_after, self.seen = admit_after, {}  # of ids without a row

    def row(self, id):
        if id not in self.rows:
            self.rows[id] = numpy.zeros(DIM, numpy.float32)
            self.last[id], self.uses[id] = self.steps, 0
            self.seen.pop(id, None)
        return self.rows[id]

    def look_up(self, ids, insert=True):
        for id in ids if insert else []:
            self.seen[id] = self.seen.get(id, 0) + 1
            if self.seen[id] >= self.admit_after:
                self.row(id)
            if id in self.rows:
                self.seen.pop(id, None)
        empty = numpy.zeros(DIM, numpy.float32)
        return numpy.array([self.rows.get(id, empty) for id in ids], numpy.float32).reshape(-1, DIM)

    def update(self, ids, gradients):
        self.steps += 1
        sums = {}
        for id, gradient in zip(ids, gradients):
            sums[id] = sums.get(id, numpy.zeros(DIM, numpy.float32)) + gradient
        for id, total in sums.items():
            if self.admit_after > 1 and id not in self.rows:
                continue
            self.rows[id] = self.row(id) - LR * total
            self.last[id] = self.steps
            self.uses[id] += 1

    def remove(self, ids):
        return sum(self.rows.pop(id, None) is not None for id in ids)

    def expire(self, unused_for=None, used_fewer_than=None):
        return self.remove(
            [
                id
                for id in self.rows
                if (unused_for is None or self.steps - self.last[id] >= unused_for)
                and (used_fewer_than is None or self.uses[id] < used_fewer_than)
            ]
        )

    def copy(self):
        other = Model(self.admit_after)
        other.rows, other.last, other.uses = dict(self.rows), dict(self.last), dict(self.uses)
        other.steps = self.steps
        return other


class Pair:
    """A table and its model, with random calls on both."""

    IDS = 300

    def __init__(self, test, space, tier, seed, admit_after=1):
        self.test, self.space, self.tier, self.admit_after = test, space, tier, admit_after
        self.random = numpy.random.default_rng(seed)
        self.table, self.model = self.new_table(), Model(admit_after)
        self.announced = []

    def new_table(self):
        return tidepool.Table(
            self.space,
            "ids",
            self.IDS,
            DIM,
            ids="hashed",
            lr=float(LR),
            tier=self.tier,
            dram="256K",
            track=("last_use", "uses"),
            admit_after=self.admit_after,
        )

    def ids(self, most):
        ids = (self.IDS * self.random.random(self.random.integers(0, most)) ** 2).astype(numpy.int64)
        return ids * 1_000_003 - 17  # numbers that are no rows

    def step(self):
        getattr(self, self.random.choice(["train", "train", "evaluate", "announce", "remove", "expire"]))()

    def train(self):
        ids, token = self.announced.pop(0) if self.announced else (self.ids(60), None)
        offsets = numpy.arange(len(ids) + 1)
        numpy.testing.assert_array_equal(self.table.bag(ids, offsets), self.model.look_up(ids.tolist()))
        gradients = self.random.standard_normal((len(ids), DIM), dtype=numpy.float32)
        self.table.update(ids, offsets, gradients)
        self.model.update(ids.tolist(), gradients)
        if token is not None:
            token.done()

    def evaluate(self):
        ids = self.ids(60)
        found = self.table.bag(ids, numpy.arange(len(ids) + 1), insert=False)
        numpy.testing.assert_array_equal(found, self.model.look_up(ids.tolist(), insert=False))

    def announce(self):
        if len(self.announced) < 4:
            ids = self.ids(40)
            if self.admit_after == 1:
                self.model.look_up(ids.tolist())
            self.announced.append((ids, self.table.prefetch(ids)))

    def remove(self):
        ids = numpy.concatenate([self.ids(20), self.ids(5)] * 2)  # each twice
        self.test.assertEqual(self.table.remove_ids(ids), self.model.remove(ids.tolist()))

    def expire(self):
        settings = [{"unused_for": 5}, {"unused_for": 2, "used_fewer_than": 2}, {"used_fewer_than": 1}]
        expiry = settings[self.random.integers(len(settings))]
        self.test.assertEqual(self.table.expire(**expiry), self.model.expire(**expiry))

    def check(self):
        self.test.assertEqual(len(self.table), len(self.model.rows))
        known = self.table.known_ids()
        self.test.assertEqual(sorted(known.tolist()), sorted(self.model.rows))
        numpy.testing.assert_array_equal(self.table.read(known), self.model.look_up(known.tolist(), insert=False))


class Ids(unittest.TestCase):
    def setUp(self):
        self.places = Everywhere()
        self.addCleanup(self.places.close)
        self.space = self.places.space

    def table(self, tier=0, **options):
        settings = {"rows": 100, "ids": "hashed", "tier": tier, "dram": "256K", **options}
        return tidepool.Table(self.space, "test", settings.pop("rows"), DIM, **settings)

    def test_calls_in_any_order_are_as_the_model(self):
        for seed, tier in enumerate(TIERS.values()):
            for admit_after in (1, 3):
                pair = Pair(self, self.space, tier, seed, admit_after)
                for number in range(250):
                    pair.step()
                    if number % 25 == 0:
                        pair.check()
                pair.check()
                self.assertGreater(pair.table.counts().removed, 50)

    def test_what_is_restored_is_what_was_left(self):
        for seed, tier in enumerate(TIERS.values()):
            with tempfile.TemporaryDirectory() as directory:
                pair = Pair(self, self.space, tier, seed + 10)
                for number in range(6):
                    for _ in range(20):
                        pair.step()
                    pair.table.checkpoint(directory, "incremental" if number else "full").result()
                    moment = pair.model.copy()
                    pair.table.drop_announced()
                    pair.announced.clear()
                    pair.step()
                    pair.table.close()
                    pair.table, pair.model = pair.new_table(), moment
                    tidepool.restore(directory, [pair.table])
                    pair.check()

    def test_rows_of_removed_ids_are_those_of_later_ones(self):
        for tier in TIERS.values():
            table = self.table(tier, init=("uniform", -1, 1, 5), optimizer="adagrad")
            offsets = numpy.arange(101)
            ones = numpy.ones((100, DIM), numpy.float32)
            first = table.bag(numpy.arange(100), offsets)
            for number in range(20):
                ids = numpy.arange(100) + 1000 * number
                numpy.testing.assert_array_equal(table.bag(ids, offsets), table.read(ids))
                table.update(ids, offsets, ones)
                once = table.read(ids)
                with self.assertRaisesRegex(tidepool.NoSpace, "remove some ids"):
                    table.update(numpy.array([-1]), numpy.array([0, 1]), ones[:1])
                self.assertEqual(table.remove_ids(ids), 100)
                self.assertEqual(len(table), 0)
            # Row and optimizer's state begin anew.
            numpy.testing.assert_array_equal(table.bag(numpy.arange(100), offsets), first)
            numpy.testing.assert_array_equal(table.bag(ids, offsets, insert=False) * 0, ones * 0)
            table.remove_ids(numpy.arange(100))
            table.update(ids, offsets, ones)
            numpy.testing.assert_array_equal(table.read(ids), once)

    def test_what_cannot_be_removed(self):
        table = self.table()
        self.assertEqual(table.remove_ids(numpy.array([5, -1, 5])), 0)
        self.assertEqual(table.remove_ids(numpy.empty(0, numpy.int64)), 0)
        with self.assertRaises(TypeError):
            table.remove_ids(numpy.array([1.5]))
        with self.assertRaisesRegex(TypeError, "dense"):
            self.table(ids="dense").remove_ids(numpy.array([1]))
        table.close()
        with self.assertRaises(tidepool.Unusable):
            table.remove_ids(numpy.array([1]))

    def test_what_cannot_expire(self):
        table = self.table(track="uses")
        with self.assertRaisesRegex(tidepool.InvalidArgument, "which rows"):
            table.expire()
        with self.assertRaisesRegex(tidepool.InvalidArgument, "last use"):
            table.expire(unused_for=3)
        with self.assertRaises(tidepool.InvalidArgument):
            table.expire(used_fewer_than=0)
        with self.assertRaisesRegex(tidepool.InvalidArgument, "65535"):
            table.expire(used_fewer_than=70000)
        with self.assertRaisesRegex(tidepool.InvalidArgument, "'age' is none"):
            self.table(track="age")
        with self.assertRaisesRegex(tidepool.InvalidArgument, "dense"):
            self.table(ids="dense", track="uses")
        with self.assertRaisesRegex(TypeError, "dense"):
            self.table(ids="dense").expire(unused_for=3)
        table.close()
        with self.assertRaises(tidepool.Unusable):
            table.expire(used_fewer_than=1)

    def test_weights_alone_are_for_serving(self):
        ids, offsets = numpy.arange(50) * 7, numpy.arange(51)
        for tier in TIERS.values():
            with tempfile.TemporaryDirectory() as directory:
                table = self.table(tier, optimizer="adam", lr=0.5, init=("normal", 0, 1, 3))
                for _ in range(3):
                    table.update(ids, offsets, table.bag(ids, offsets))
                table.checkpoint(directory).result()
                served = self.table(tier, init=("normal", 0, 1, 3))
                with self.assertRaisesRegex(tidepool.InvalidArgument, "weights only"):
                    tidepool.restore(directory, [served])
                tidepool.restore(directory, [served], weights_only=True)
                numpy.testing.assert_array_equal(served.read(ids), table.read(ids))
                numpy.testing.assert_array_equal(
                    served.bag(ids + 1, offsets, insert=False), table.bag(ids + 1, offsets, insert=False)
                )
                self.assertEqual(len(served), 50)

    def test_rows_are_for_ids_that_come_often(self):
        for tier in TIERS.values():
            table = self.table(tier, admit_after=3, init=("uniform", 1, 2, 5), lr=1.0)
            once, offsets = numpy.arange(1000), numpy.arange(1001)
            initial = table.bag(once, offsets)
            table.update(once, offsets, numpy.ones((1000, DIM), numpy.float32))
            table.prefetch(once).done()
            numpy.testing.assert_array_equal(table.bag(once, offsets), initial)
            self.assertEqual(len(table), 0)
            few, ends = once[10:20], numpy.arange(11)
            numpy.testing.assert_array_equal(table.bag(few, ends), initial[10:20])
            table.update(few, ends, numpy.ones((10, DIM), numpy.float32))
            numpy.testing.assert_array_equal(table.read(few), initial[10:20] - 1)
            self.assertEqual(sorted(table.known_ids()), few.tolist())
            table.write(once[:1], initial[5:6])
            numpy.testing.assert_array_equal(table.bag(once[:1], ends[:2]), initial[5:6])
        for settings in ({"admit_after": 0}, {"admit_after": 256}, {"admit_after": 2, "ids": "dense"}):
            with self.assertRaises(tidepool.InvalidArgument):
                self.table(**settings)

    def test_threads_with_ids_of_their_own(self):
        for tier in TIERS.values():
            table = self.table(tier, rows=60)
            failures = []

            def come_and_go(thread):
                try:
                    random = numpy.random.default_rng(thread)
                    for number in range(100):
                        ids = thread * 1_000_000 + number * 20 + numpy.arange(20)
                        values = random.standard_normal((20, DIM), dtype=numpy.float32)
                        table.write(ids, values)
                        numpy.testing.assert_array_equal(table.read(ids), values)
                        assert table.remove_ids(ids) == 20
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(failures, [])
            self.assertEqual(len(table), 0)


if __name__ == "__main__":
    unittest.main()
