# SPDX-License-Identifier: Apache-2.0
"""Tables of one space share its local memory: never more than it, after what they gain, with the same results."""

import gc
import os
import threading
import unittest

import numpy
import torch

import tidepool
import tidepool.torch
from places import TIERS, Everywhere, batch

ROWS, DIM = 20_000, 16
FAR = [TIERS["direct"], TIERS["remote"]]
OPTIONS = {"init": ("uniform", -1, 1, 5), "optimizer": "adagrad", "lr": 0.05}
WHOLE = ROWS * DIM * 4 * 2  # with the state of the optimizer


def skewed(random, hot, count=8192):
    """Nine of ten look-ups are of `hot` rows."""
    ids = numpy.where(random.random(count) < 0.9, random.integers(0, hot, count), random.integers(0, ROWS, count))
    return ids, numpy.arange(0, count + 1, 64)


class SharedDram(unittest.TestCase):
    def setUp(self):
        self.places = Everywhere()
        self.addCleanup(self.places.close)
        self.space = self.places.space

    def table(self, tier, name="shared", **options):
        return tidepool.Table(self.space, name, ROWS, DIM, tier=tier, **{**OPTIONS, **options})

    def held(self, tables):
        return sum(table.dram for table in tables)

    def test_shares_follow_what_tables_gain(self):
        for tier in FAR:
            self.space.set_dram("3M")
            tables = {name: self.table(tier, name) for name in ("skewed", "uniform", "idle")}
            self.assertTrue(all(table.shares_dram for table in tables.values()))
            begun = {name: table.dram for name, table in tables.items()}
            self.assertEqual(begun["skewed"], begun["idle"], "evenly, as long as nothing is known")
            random = numpy.random.default_rng(5)
            for _ in range(60):
                tidepool.bags([
                    (tables["skewed"], *skewed(random, 2000)),
                    (tables["uniform"], *skewed(random, ROWS)),
                ])
                self.assertLessEqual(self.held(tables.values()), self.space.dram)
                for table in tables.values():
                    self.assertLessEqual(table.counts().dram_bytes, table.dram)
            self.assertLess(tables["idle"].dram, begun["idle"] / 2)
            self.assertGreater(tables["uniform"].dram, begun["uniform"])
            before = tables["skewed"].counts()
            tables["skewed"].bag(*skewed(random, 2000))
            after = tables["skewed"].counts()
            self.assertGreater((after.hits - before.hits) / 8192, 0.8)
            for table in tables.values():
                table.close()
            self.assertEqual(self.space.dram, 3 << 20, "a size stays what it is")

    def test_evaluation_alone_moves_them_too(self):
        for tier in FAR:
            self.space.set_dram("3M")
            used, idle = self.table(tier, "used"), self.table(tier, "idle")
            begun = idle.dram
            random = numpy.random.default_rng(5)
            for _ in range(60):
                tidepool.bags([tidepool.BagCall(used, *skewed(random, ROWS), insert=False)])
            self.assertLess(idle.dram, begun)
            self.assertGreater(used.dram, begun)
            used.close()
            idle.close()

    def test_results_do_not_depend_on_shares(self):
        for tier in FAR:
            self.space.set_dram("1.5M")
            tables = [self.table(tier, "a"), self.table(tier, "b", dtype="float16")]
            plain = [self.table(0, "plain a"), self.table(0, "plain b", dtype="float16")]
            random = numpy.random.default_rng(6)
            for step in range(40):
                parts = [batch(random, ROWS, 20, 30) for _ in tables]
                gradients = [random.standard_normal((20, DIM)).astype(numpy.float32) for _ in tables]
                results = []
                for which in (tables, plain):
                    results.append(tidepool.bags([(t, *part) for t, part in zip(which, parts)]))
                    tidepool.updates([(t, *part, g) for t, part, g in zip(which, parts, gradients)])
                for ours, theirs in zip(*results):
                    numpy.testing.assert_array_equal(ours, theirs)
                if step % 5 == 0:
                    self.space.set_dram(f"{random.integers(1400, 3000)}K")
                self.assertLessEqual(self.held(tables), self.space.dram)
            for table, its in zip(tables, plain):
                ids = numpy.arange(ROWS)
                numpy.testing.assert_array_equal(table.read(ids), its.read(ids))
                table.close()
                its.close()

    def test_a_part_grows_and_becomes_less_with_the_tables(self):
        self.assertEqual(self.space.dram, 0)
        with self.table(1):
            self.assertGreaterEqual(self.space.dram, 0.1 * WHOLE)
        self.assertEqual(self.space.dram, 0)
        self.space.set_dram("15%")
        one = self.table(1)
        self.assertAlmostEqual(self.space.dram, 0.15 * WHOLE, delta=1)
        two, local = self.table(1), self.table(0)
        self.assertFalse(local.shares_dram)
        self.assertEqual(local.dram, 0)
        own = self.table(1, dram="200K")
        self.assertFalse(own.shares_dram)
        self.assertEqual(own.dram, 200 << 10)
        self.assertAlmostEqual(self.space.dram, 0.3 * WHOLE, delta=2)
        self.assertLessEqual(one.dram + two.dram, self.space.dram)
        self.space.set_dram("25%")
        self.assertAlmostEqual(self.space.dram, 0.5 * WHOLE, delta=2)
        own.close()
        one.close()
        one.close()
        self.assertAlmostEqual(self.space.dram, 0.25 * WHOLE, delta=1)
        del two
        gc.collect()
        self.assertEqual(self.space.dram, 0, "one that is forgotten gives its part back, too")
        three = self.table(1)
        self.assertAlmostEqual(self.space.dram, 0.25 * WHOLE, delta=1)
        small = tidepool.Table(self.space, "small", 100, 4, tier=2, ids="hashed")
        small.bag(numpy.arange(90), numpy.array([0, 90]))
        self.assertLessEqual(small.dram + three.dram, self.space.dram)

    def test_a_part_of_a_small_table_is_enough_for_it(self):
        for part in ("10%", "5%", "1%", "0.5%", "0.01%"):
            with tidepool.Space(self.space.far, dram=part) as space:
                for rows, dim in ((1, 1), (2, 1), (4, 1), (1, 4), (3, 16), (4, 8), (10, 4)):
                    for tier in FAR:
                        for options in ({}, {"dram": part}):
                            table = tidepool.Table(space, "small", rows, dim, tier=tier, init=OPTIONS["init"], **options)
                            ids = numpy.arange(rows)
                            self.assertEqual(table.bag(ids, numpy.arange(rows + 1)).tolist(), table.read(ids).tolist())
                space.set_dram("1G")
                space.set_dram(part)
                for wrong in ("0%", "0.0%", "101%"):
                    with self.assertRaises(tidepool.InvalidArgument):
                        space.set_dram(wrong)
                    with self.assertRaises(tidepool.InvalidArgument):
                        tidepool.Table(space, "small", 2, 1, tier=1, dram=wrong)

    def test_what_is_refused(self):
        for kind, dram in ((ValueError, 0), (ValueError, "0%"), (ValueError, "much"), (TypeError, 1.5), (ValueError, -1)):
            with self.assertRaises(kind):
                tidepool.Space(["cxl:16M"], dram=dram)
            with self.assertRaises(kind):
                self.space.set_dram(dram)
        self.space.set_dram("64K")
        with self.assertRaisesRegex(tidepool.NoSpace, "big: the budget of 65536 bytes .* takes [0-9]+ bytes or more"):
            self.table(2, "big", ids="hashed")
        self.assertEqual(self.space.dram, 65536)
        self.space.set_dram("10%")
        self.assertEqual(self.space.dram, 0, "a table that was not made brought nothing")
        with self.assertRaises(tidepool.NoSpace):  # more than the tier has
            tidepool.Table(self.space, "huge", 10**9, 64, tier=1)
        self.assertEqual(self.space.dram, 0)
        table = self.table(1)
        before = self.space.dram, table.dram
        with self.assertRaisesRegex(tidepool.NoSpace, "takes [0-9]+ bytes or more"):
            self.space.set_dram(1000)
        self.assertEqual((self.space.dram, table.dram), before)
        self.space.close()
        with self.assertRaises(tidepool.Unusable):
            self.space.set_dram("1M")
        with self.assertRaises(tidepool.Unusable):
            table.dram

    def test_it_may_change_while_tables_train(self):
        tables = [self.table(tier, str(tier)) for tier in FAR]
        stop, failures = threading.Event(), []

        def change():
            random = numpy.random.default_rng(8)
            while not stop.is_set():
                try:
                    self.space.set_dram(f"{random.integers(20, 60)}%")
                    self.table(1, "passing").close()
                except Exception as error:  # pylint: disable=broad-except
                    failures.append(error)
                    return

        changing = threading.Thread(target=change)
        changing.start()
        random = numpy.random.default_rng(9)
        for _ in range(100):
            ids, offsets = batch(random, ROWS, 20, 30)
            out = tidepool.bags([(table, ids, offsets) for table in tables])
            numpy.testing.assert_array_equal(*out)
            tidepool.updates([(table, ids, offsets, out[0]) for table in tables])
        stop.set()
        changing.join()
        self.assertEqual(failures, [])

    def test_checkpoints_of_the_least(self):
        tables = [self.table(tier, str(tier)) for tier in FAR]
        alone = self.table(1, "alone", dram="1%")
        with self.assertRaises(tidepool.NoSpace) as refused:
            self.space.set_dram("40K")
        least = int(str(refused.exception).rsplit(" bytes or more", 1)[0].rsplit(" ", 1)[1])
        self.space.set_dram(least)
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            tidepool.save(folder, [*tables, alone]).result()
            self.assertTrue(tidepool.verify(folder).ok)

    def test_a_collection_says_it_once(self):
        def bag(tier, **options):
            return tidepool.torch.EmbeddingBag(ROWS, DIM, mode="sum", space=self.space, tier=tier, **options)

        users, items, local = bag(1), bag(2), bag(0)
        together = tidepool.torch.EmbeddingBagCollection({"users": users, "items": items, "local": local}, dram="2M")
        self.assertEqual(self.space.dram, 2 << 20)
        self.assertLessEqual(users.table.dram + items.table.dram, 2 << 20)
        together([torch.randint(ROWS, (4, 3))] * 3).sum().backward()
        with self.assertRaisesRegex(ValueError, r"bags\['users'\].*dram of its own"):
            tidepool.torch.EmbeddingBagCollection({"users": bag(1, dram="200K"), "items": items}, dram="1M")
        with self.assertRaises(tidepool.NoSpace):
            tidepool.torch.EmbeddingBagCollection([users, items], dram="10K")
        self.assertEqual(self.space.dram, 2 << 20)

    def test_a_child_of_fork_changes_nothing(self):
        table = self.table(1)
        before = self.space.dram
        child = os.fork()
        if child == 0:
            try:
                table.close()
                self.space.close()
            except tidepool.Unusable:
                pass
            except BaseException:  # pylint: disable=broad-except
                os._exit(1)
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.space.dram, before)
        table.bag(numpy.arange(9), numpy.array([0, 9]))


if __name__ == "__main__":
    unittest.main()
