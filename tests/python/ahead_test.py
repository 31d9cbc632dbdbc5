# SPDX-License-Identifier: Apache-2.0
"""Batches that a DataLoader's workers have ready, announced for unchanged programs: the same results, bit for bit, and
rows that are there when they are looked up."""

import json
import os
import random
import sys
import unittest

import torch

from places import MemoryServer
from rows_test import HERE, plain, run

sys.path.insert(0, os.path.join(HERE, "../../allocator/python/unchanged"))
from tidepool_rows.ahead_policy import Announced, Trust, Worth  # noqa: E402
from tidepool_rows.ahead_source import find, id_tensors  # noqa: E402

PROGRAMS = os.path.join(HERE, "ahead_programs.py")


class Loops(unittest.TestCase):
    """Unchanged programs, plain and by rows of a memory server."""

    @classmethod
    def setUpClass(cls):
        cls.server = MemoryServer("1G")
        cls.addClassCleanup(cls.server.stop)

    def same(self, *names, words=(), start="spawn", **more):
        """What the programs say of their tables, by name. They print what they print without Tidepool."""
        command = [sys.executable, PROGRAMS, ",".join(names), *words]
        # Beside workers forked from it, which keep pages of their parent's, its own pages have next to no memory.
        expected = plain(*command, START=start)
        found = run(*command, far=self.server.spec, START=start, **more)
        self.assertEqual(expected.returncode, 0, expected.stderr)
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertEqual(found.stdout, expected.stdout)
        self.assertNotIn("reading ahead: off", found.stderr)
        said = {}
        for line in found.stderr.splitlines():
            if line.startswith("{"):
                said.update(json.loads(line))
        return said

    def check_found(self, said, name):
        """Since it was learned what is looked up, no row was waited for; and nothing is left announced."""
        (waited, ahead), (waited_then, ahead_then) = said[name]["end"], said[name]["learned"]
        self.assertEqual(waited, waited_then, said)
        for one, then in zip(ahead, ahead_then):
            self.assertGreater(then, 0, said)
            self.assertGreaterEqual(one, then, said)  # an epoch whose batches were all ready by then has no more
        self.assertEqual(said[name]["streams"], 0, said)
        self.assertEqual(said[name]["waiting"], [0, 0], said)

    def test_rows_are_there_when_they_are_looked_up(self):
        """All programs in one process, whose workers do not have to import torch again; the last two change it."""
        programs = "epochs iterable late dropped persistent several failing others pinned dying".split()
        said = self.same(*programs, start="forkserver")
        for name in ("epochs", "iterable", "failing", "late", "pinned"):
            with self.subTest(name):
                self.check_found(said, name)
        for name in ("several", "dropped"):
            with self.subTest(name):
                self.assertEqual((said[name]["streams"], said[name]["waiting"]), (0, [0, 0]), said)
        with self.subTest("batches beyond the one that is used are announced, and dropped with the iterator"):
            self.assertEqual(said["dropped"]["announced"][:4], [10, 11, 12, 13], said)
        with self.subTest("the loader keeps its workers, and with them the iterator of the last epoch"):
            self.assertLessEqual(said["persistent"]["streams"], 1)
        with self.subTest("what is not looked up is no longer announced"):
            self.assertEqual(said["others"]["end"][1], said["others"]["then"][1], "asked for in vain for ever")

    def test_of_dense_gradients_as_well(self):
        self.check_found(self.same("dense_gradients", rows="all:64"), "dense_gradients")

    def test_off(self):
        command = [sys.executable, PROGRAMS, "epochs"]
        found = run(*command, far=self.server.spec, options=["--rows-ahead", "off"], START="forkserver")
        self.assertRegex(found.stderr, r'"end": \[\[\d+, \d+\], \[0, 0\]\]')

    def test_measured_and_in_a_pool(self):
        """Whether it is found to pay or not, the results are the same."""
        self.same("epochs", "iterable", words=["--measured"])
        command = [sys.executable, PROGRAMS, "epochs", "--measured"]
        found = run(*command, far="cxl:256M")  # whose workers are forked
        self.assertEqual(found.stdout, plain(*command).stdout)
        self.assertRegex(found.stderr, r'"end": \[\[\d+, \d+\], \[0, 0\]\]')


class Sources(unittest.TestCase):
    def found(self, batch, ids):
        return find(id_tensors(batch), ids.reshape(-1).to(torch.int64).contiguous())

    def test_finds_what_was_taken_from_a_batch(self):
        """At any path, any columns, either kind of integer, with numbers added: and again in the next batch."""
        for seed in range(200):
            chosen = random.Random(seed)
            torch.manual_seed(seed)
            dims = chosen.choice([(16,), (16, 5), (3, 16), (16, 2, 4)])
            dtype = chosen.choice([torch.int64, torch.int32])
            cut = chosen.choice(["all", "first", "last", "some"]) if len(dims) > 1 else "all"
            shifts = torch.randint(0, 1000, (1, *dims[1:])) if dims[0] >= 8 and chosen.random() < 0.4 else 0

            def take(tensor):
                if cut == "first":
                    return tensor[1]
                if cut == "last":
                    return tensor[..., -1]
                return tensor[..., 1:3] if cut == "some" else tensor

            def batch():
                return {"x": torch.rand(3), "in": [0, (torch.randint(0, 10**6, dims, dtype=dtype), "text")], 7: None}

            first, second = batch(), batch()
            if isinstance(shifts, torch.Tensor) and cut in ("first", "some"):
                shifts = 0
            given = [take(one["in"][1][0] + shifts).to(torch.int64).reshape(-1) for one in (first, second)]
            source = self.found(first, given[0])
            with self.subTest(seed=seed, dims=dims, cut=cut):
                self.assertIsNotNone(source)
                self.assertEqual(source.path, ("in", 1, 0))
                self.assertTrue(torch.equal(source.ids_in(second), given[1]))

    def test_finds_nothing_where_there_is_nothing(self):
        for seed in range(50):
            torch.manual_seed(seed)
            batch = [torch.randint(0, 10**6, (16, 4)), torch.rand(16), "text", None, {}, torch.zeros(0, dtype=torch.int64)]
            self.assertIsNone(self.found(batch, torch.randint(0, 10**6, (16,))))
            self.assertIsNone(self.found(batch, torch.randint(0, 10**6, (11,))))
            self.assertIsNone(self.found(batch, batch[0].flip(0)))

    def test_hostile_batches(self):
        class Raises(dict):
            def items(self):
                raise AssertionError("the program's own code is not run")

            __getitem__ = __iter__ = items

        loop = []
        loop.append(loop)
        ids = torch.arange(20)
        deep = ids
        for _ in range(50):
            deep = [deep]
        wide = [torch.arange(9)] * 10000
        batch = [loop, deep, Raises(a=ids + 5), wide, iter([]), object(), ids[::2], torch.sparse_coo_tensor((3, 3))]
        source = self.found(batch, ids + 5)
        self.assertEqual(source.path[0], 2)
        for other in (None, [], [1, 2], {2: 3}, [0, 0, ids], [0, 0, {"a": torch.rand(20)}], [0, 0, Raises()]):
            self.assertIsNone(source.ids_in(other))

    def test_of_other_shapes_there_are_no_ids(self):
        batch = torch.randint(0, 100, (16, 4))
        source = self.found([batch], batch[:, 3] + 50)
        self.assertEqual(source.ids_in([torch.ones(3, 4, dtype=torch.int64)]).tolist(), [51] * 3)
        for other in (torch.ones(16, 3, dtype=torch.int64), torch.ones(16, dtype=torch.int64), torch.tensor(3)):
            self.assertIsNone(source.ids_in([other]))


class Policy(unittest.TestCase):
    def play(self, worth, batches, cost, fetched=10):
        """So many batches with a cost of cost(whether announced, number); in how many they were announced."""
        announced = 0
        for number in range(batches):
            announced += worth.announces
            worth.batch(cost(worth.announces, number), 100, fetched)
        return announced

    def test_what_costs_less_is_done(self):
        for noise in (0, 0.3):
            chosen = random.Random(5)
            for gain in (0.5, 0.9, 1.1, 3):
                worth = Worth()
                share = self.play(worth, 4000, lambda on, _: (gain if on else 1) * (1 + noise * chosen.random() ** 4)) / 4000
                with self.subTest(noise=noise, gain=gain):
                    self.assertTrue(share > 0.9 if gain < 1 else share < 0.1, share)

    def test_it_is_asked_again_and_changes(self):
        worth = Worth()
        self.play(worth, 2000, lambda on, _: 1 - on / 2)
        self.assertFalse(worth.rests)
        late = self.play(worth, 20000, lambda on, _: 1 + on)
        self.assertTrue(worth.rests)
        self.assertLess(late, 5000)
        self.assertGreater(self.play(worth, 20000, lambda on, _: 1 - on / 2), 10000)

    def test_tables_that_wait_for_nothing_are_left_alone(self):
        worth = Worth()
        self.assertEqual(self.play(worth, 3000, lambda on, _: 1 - on / 2, fetched=0), 0)
        self.assertTrue(worth.rests)

    def test_single_slow_batches_decide_nothing(self):
        worth = Worth()
        share = self.play(worth, 3000, lambda on, number: 1000 if number % 5 == 0 and on else 1 - on / 10) / 3000
        self.assertGreater(share, 0.9)

    def test_batches_without_look_ups_do_not_count(self):
        worth = Worth()
        for _ in range(10000):
            worth.batch(1.0, 0, 0)
        self.assertFalse(worth.announces or worth.rests)

    def test_trust_is_won_and_lost(self):
        trust = Trust()
        for used in (True, True):
            trust.saw(used)
        self.assertFalse(trust.won)
        trust.saw(True)
        self.assertTrue(trust.won)
        for _ in range(20):
            trust.saw(True)
        trust.saw(False)
        self.assertTrue(trust.won)
        for _ in range(3):
            trust.saw(False)
        self.assertFalse(trust.won)
        trust.saw(False)
        self.assertTrue(trust.lost)

    def test_batches_are_finished_in_their_order(self):
        """Against a model: a list of (token, over)."""
        for seed in range(200):
            chosen, announced, model, newest = random.Random(seed), Announced(), [], 0
            for _ in range(200):
                if chosen.random() < 0.55:
                    newest += 1
                    found = announced.add(newest)
                    model.append([newest, False])
                else:
                    token = chosen.randint(0, newest)
                    found = announced.over(token)
                    for entry in model:
                        entry[1] |= entry[0] == token
                expected = None
                while model and (model[0][1] or len(model) > Announced.MOST):
                    expected = model.pop(0)[0]
                self.assertEqual(found, expected)
                self.assertEqual(len(announced), len(model))


if __name__ == "__main__":
    unittest.main()
