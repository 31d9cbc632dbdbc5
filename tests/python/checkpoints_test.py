# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in Python: of one moment while training goes on, back into any tier and size, and damage that is seen."""

import asyncio
import copy
import io
import os
import pathlib
import pickle
import tempfile
import unittest

import numpy
import torch

import tidepool
import tidepool.torch
from fork_test import in_child
from places import TIERS, Everywhere, batch

ROWS, DIM = 3000, 12


class Saved(unittest.TestCase):
    def setUp(self):
        self.places = Everywhere()
        self.addCleanup(self.places.close)
        self.space = self.places.space
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "checkpoints"


def digests(table):
    return table.read(numpy.arange(table.capacity)).tobytes()


class Tables(Saved):
    def table(self, tier=0, **options):
        settings = {"init": ("uniform", -1, 1, 5), "dram": "64K", "optimizer": "adam", "lr": 0.05, **options}
        return tidepool.Table(
            self.space, settings.pop("name", "items"), settings.pop("rows", ROWS), DIM, tier=tier, **settings
        )

    def train(self, table, first, last):
        """Steps that depend on their number alone."""
        for number in range(first, last):
            random = numpy.random.default_rng(number)
            ids, offsets = batch(random, ROWS, 40, 9)
            table.update(ids, offsets, random.standard_normal((40, DIM), dtype=numpy.float32))

    def test_a_restored_table_goes_on_as_if_nothing_had_happened(self):
        whole = self.table()
        self.train(whole, 0, 9)
        for name, tier in TIERS.items():
            self.path.mkdir(exist_ok=True)
            path = self.path / name
            table = self.table(tier)
            self.train(table, 0, 5)
            info = table.checkpoint(path).result()
            self.assertEqual((info.number, info.kind, info.has_state), (1, "full", False))
            self.assertEqual(
                info.tables, (tidepool.CheckpointTable("items", ROWS, ROWS, "dense", "float32 adam 12", 5, 1),)
            )
            table.close()
            for elsewhere in TIERS.values():
                other = self.table(elsewhere, rows=ROWS + 7, dram="200K", init="zero")
                self.assertEqual(tidepool.restore(path, [other]), info)
                self.train(other, 5, 9)
                ids = numpy.arange(ROWS)
                self.assertEqual(other.read(ids).tobytes(), whole.read(ids).tobytes())
                other.close()

    def test_it_is_one_moment_while_training_goes_on(self):
        for name, tier in TIERS.items():
            tables = [self.table(tier, name=word) for word in ("a", "b")]
            for table in tables:
                self.train(table, 0, 3)
            then = [digests(table) for table in tables]
            # Slow enough that most of it is written after the steps below have begun.
            self.path.mkdir(exist_ok=True)
            saving = tidepool.save(self.path / name, tables, rate="500K", copies="1M")
            self.assertFalse(saving.done())
            with self.assertRaises(TimeoutError):
                saving.result(timeout=0.01)
            self.train(tables[0], 3, 8)
            self.train(tables[1], 3, 8)
            self.assertNotEqual([digests(table) for table in tables], then)
            saving.result()
            progress = saving.progress()
            self.assertTrue(progress.done)
            self.assertEqual((progress.rows, progress.rows_in_all), (2 * ROWS, 2 * ROWS))
            self.assertGreater(progress.rows_copied, 0)
            tidepool.restore(self.path / name, tables)
            self.assertEqual([digests(table) for table in tables], then)
            for table in tables:
                table.close()

    def test_incremental_ones_have_what_changed(self):
        table = self.table(TIERS["direct"])
        with self.assertRaises(tidepool.NotFound):
            table.checkpoint(self.path, "incremental")
        first = table.checkpoint(self.path, "auto").result()
        self.assertEqual(first.kind, "full")
        table.write(numpy.arange(10), numpy.ones((10, DIM), numpy.float32))
        second = table.checkpoint(self.path, "auto").result()
        self.assertEqual(second.kind, "incremental")
        self.assertEqual(second.tables[0].files, 2)
        self.assertLess(second.bytes - first.bytes, first.bytes / 20)
        moment = digests(table)
        self.train(table, 0, 2)
        third = table.checkpoint(self.path, "incremental", keep=1).result()
        self.assertEqual([report.number for report in tidepool.checkpoints(self.path)], [3])
        report = tidepool.verify(self.path)
        self.assertTrue(report.ok, report.problems)
        self.assertEqual(report.info, third)
        self.assertGreater(report.rows, ROWS)
        last = digests(table)
        other = self.table()
        tidepool.restore(self.path, [other])
        self.assertEqual(digests(other), last)
        self.assertNotEqual(last, moment)
        # A table that was restored goes on with incremental ones.
        other.write(numpy.arange(3), numpy.ones((3, DIM), numpy.float32))
        self.assertEqual(other.checkpoint(self.path, "auto").result().kind, "incremental")
        # The first one's changes do not count from that.
        with self.assertRaises(tidepool.Conflict):
            table.checkpoint(self.path, "incremental")
        self.assertEqual(table.checkpoint(self.path, "auto").result().kind, "full")

    def test_numbers_are_restored(self):
        table = self.table()
        moments = []
        for number in range(3):
            self.train(table, number, number + 1)
            moments.append(digests(table))
            table.checkpoint(self.path, "auto").result()
        for number, moment in enumerate(moments):
            tidepool.restore(self.path, [table], number + 1)
            self.assertEqual(digests(table), moment)
        with self.assertRaises(tidepool.NotFound):
            tidepool.restore(self.path, [table], 9)

    def test_an_export_is_taken_aside(self):
        table = self.table()
        table.checkpoint(self.path).result()
        self.train(table, 0, 1)
        table.checkpoint(self.path.parent / "export", aside=True).result()
        self.assertEqual(table.checkpoint(self.path, "incremental").result().kind, "incremental")
        with self.assertRaises(tidepool.InvalidArgument):
            table.checkpoint(self.path, "incremental", aside=True)

    def test_hashed_ids(self):
        ids = numpy.random.default_rng(7).integers(-(2**63), 2**63 - 1, 500)
        table = self.table(TIERS["remote"], ids="hashed")
        table.write(ids, numpy.random.default_rng(8).random((500, DIM), dtype=numpy.float32))
        table.checkpoint(self.path).result()
        other = self.table(ids="hashed")
        tidepool.restore(self.path, [other])
        self.assertEqual(len(other), 500)
        self.assertEqual(other.read(ids).tobytes(), table.read(ids).tobytes())
        with self.assertRaises(tidepool.Conflict):  # it has rows already
            tidepool.restore(self.path, [other])

    def test_rows_are_split_up(self):
        table = self.table()
        self.train(table, 0, 2)
        table.checkpoint(self.path).result()
        halves = [self.table(tier, name=f"half{tier}", rows=ROWS // 2) for tier in (0, 1)]
        part = tidepool.RestorePart
        tidepool.restore(
            self.path,
            [part(halves[0], "items", 0, ROWS // 2), part(halves[1], "items", ROWS // 2)],
        )
        self.assertEqual(b"".join(digests(half) for half in halves), digests(table))

    def test_the_callers_own_state(self):
        table = self.table()
        for state in (b"", b"some state", os.urandom(3 << 20)):
            info = table.checkpoint(self.path, state=state).result()
            self.assertTrue(info.has_state)
            self.assertEqual(tidepool.load_state(self.path), state)
        self.assertEqual(tidepool.load_state(self.path, 2), b"some state")
        table.checkpoint(self.path).result()
        with self.assertRaises(tidepool.NotFound):
            tidepool.load_state(self.path)
        for wrong in ("text", 5, bytearray(b"x")):
            with self.assertRaises(TypeError):
                table.checkpoint(self.path, state=wrong)
        # Goes with its checkpoint.
        table.checkpoint(self.path, keep=2).result()
        self.assertEqual(len(list(self.path.glob("*.state"))), 0)

    def test_damage_is_seen(self):
        table = self.table()
        self.train(table, 0, 2)
        first = digests(table)
        table.checkpoint(self.path, state=b"first").result()
        self.train(table, 2, 4)
        table.checkpoint(self.path, state=b"second").result()
        state, rows = self.path / "0000000002.state", self.path / "0000000002-0000.rows"
        state.write_bytes(b"seconD")
        report = tidepool.verify(self.path)
        self.assertFalse(report.ok)
        self.assertIn("0000000002.state", report.problems[0])
        with self.assertRaises(tidepool.Corrupt):
            tidepool.load_state(self.path)
        damaged = bytearray(rows.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        rows.write_bytes(damaged)
        self.assertEqual(len(tidepool.verify(self.path).problems), 2)
        other = self.table()
        with self.assertRaises(tidepool.Corrupt):
            tidepool.restore(self.path, [other])
        with self.assertRaises(tidepool.Error):
            other.read(numpy.arange(3))
        self.assertTrue(tidepool.verify(self.path, 1).ok)
        tidepool.restore(self.path, [other], 1)
        self.assertEqual(digests(other), first)
        (self.path / "0000000002.manifest").write_bytes(b"nothing")
        self.assertIsNone(tidepool.checkpoints(self.path)[1].info)

    def test_what_is_refused_changes_nothing(self):
        table = self.table()
        table.checkpoint(self.path).result()
        before = digests(table)
        for kind, act in (
            (TypeError, lambda: tidepool.save(self.path, table)),
            (TypeError, lambda: tidepool.save(self.path, ["items"])),
            (ValueError, lambda: tidepool.save(self.path, [])),
            (ValueError, lambda: tidepool.save(self.path, [table, self.table()])),
            (ValueError, lambda: table.checkpoint(self.path, "whole")),
            (TypeError, lambda: table.checkpoint(self.path, 1)),
            (ValueError, lambda: table.checkpoint(self.path, keep=-1)),
            (ValueError, lambda: table.checkpoint(self.path, writers=0)),
            (ValueError, lambda: table.checkpoint(self.path, rate="fast")),
            (TypeError, lambda: table.checkpoint(5.5)),
            (tidepool.Error, lambda: table.checkpoint("/proc/nothing")),
            (tidepool.NotFound, lambda: tidepool.restore(self.path / "no", [table])),
            (tidepool.NotFound, lambda: tidepool.restore(self.path, [self.table(name="other")])),
            (tidepool.NotFound, lambda: tidepool.verify(self.path.parent)),
            (tidepool.NotFound, lambda: tidepool.checkpoints(self.path / "no")),
            (ValueError, lambda: tidepool.restore(self.path, [])),
            (ValueError, lambda: tidepool.restore(self.path, [table], -1)),
            (TypeError, lambda: tidepool.restore(self.path, [table], 1.5)),
            (TypeError, lambda: tidepool.restore(self.path, [tidepool.RestorePart(table, 5)])),
            (ValueError, lambda: tidepool.restore(self.path, [tidepool.RestorePart(table, "items", ROWS, 5)])),
            (tidepool.NoSpace, lambda: tidepool.restore(self.path, [self.table(rows=ROWS - 1)])),
            (ValueError, lambda: tidepool.restore(self.path, [self.table(dtype="int8")])),
            (ValueError, lambda: tidepool.restore(self.path, [self.table(optimizer="sgd")])),
            (ValueError, lambda: tidepool.restore(self.path, [self.table(ids="hashed")])),
        ):
            with self.assertRaises(kind):
                act()
            self.assertEqual(digests(table), before)
        self.assertEqual(len(tidepool.checkpoints(self.path)), 1)
        table.close()
        for act in (lambda: table.checkpoint(self.path), lambda: tidepool.restore(self.path, [table])):
            with self.assertRaises(tidepool.Unusable):
                act()

    def test_one_at_a_time_and_cancelling(self):
        table, other = self.table(), self.table(name="other")
        table.checkpoint(self.path).result()
        slow = table.checkpoint(self.path, rate="10K")
        for act in (lambda: table.checkpoint(self.path.parent / "b"), lambda: other.checkpoint(self.path)):
            with self.assertRaises(tidepool.Conflict):
                act()
        self.assertEqual(slow.number, 2)
        slow.cancel()
        with self.assertRaises(tidepool.Conflict):
            slow.result()
        self.assertEqual([report.number for report in tidepool.checkpoints(self.path)], [1])
        self.assertEqual(other.checkpoint(self.path).result().number, 2)

    def test_closing_waits_for_nothing(self):
        table = self.table()
        before = digests(table)
        saving = table.checkpoint(self.path, rate="300K")
        table.close()
        self.assertTrue(table.closed)
        saving.result()
        other = self.table()
        tidepool.restore(self.path, [other])
        self.assertEqual(digests(other), before)

    def test_await(self):
        table = self.table()

        async def work():
            saving = table.checkpoint(self.path)
            info = await saving
            self.assertEqual(info, await saving)
            slow = table.checkpoint(self.path, rate="300K")
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(slow, 0.01)
            return await slow

        self.assertEqual(asyncio.run(work()).number, 2)

    def test_processes_and_copies(self):
        table = self.table()
        saving = table.checkpoint(self.path)

        def child():
            said = []
            for act in (saving.result, saving.done, saving.progress, lambda: table.checkpoint(self.path)):
                try:
                    act()
                    said.append("done")
                except tidepool.Unusable:
                    said.append("no")
            return "".join(said)

        self.assertEqual(in_child(child), "no" * 4)
        saving.result()
        for act in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "belongs to its process"):
                act(saving)


def copies_of(collection, space):
    """A collection of the same shape, in local memory."""
    return tidepool.torch.EmbeddingBagCollection(
        [
            tidepool.torch.EmbeddingBag(bag.num_embeddings, bag.embedding_dim, space=space, tier=0, optimizer="adagrad")
            for bag in collection.bags
        ]
    )


class Models(Saved):
    def model(self, tier, prefix="", rows=ROWS):
        torch.manual_seed(3)

        class Model(torch.nn.Module):
            def __init__(this):
                super().__init__()
                options = {"space": self.space, "tier": tier, "dram": "32K", "optimizer": "adagrad", "lr": 0.1}
                make = tidepool.torch.EmbeddingBag
                this.bags = tidepool.torch.EmbeddingBagCollection(
                    {word: make(rows, DIM, mode="sum", name=prefix + word, **options) for word in ("users", "things")}
                )
                this.top = torch.nn.Sequential(torch.nn.Linear(2 * DIM, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))

            def forward(this, ids):
                return this.top(this.bags({"users": ids, "things": ROWS - 1 - ids}))

        model = Model()
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def train(self, model, optimizer, first, last):
        for number in range(first, last):
            random = torch.Generator().manual_seed(number)
            ids = torch.randint(ROWS, (16, 5), generator=random)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(ids), ids.float().mean(1, keepdim=True) / ROWS).backward()
            optimizer.step()

    def same(self, one, other):
        one, other = one.state_dict(), other.state_dict()
        self.assertEqual(list(one), list(other))
        for key in one:
            self.assertEqual(one[key].numpy().tobytes(), other[key].numpy().tobytes(), key)

    def test_a_resumed_run_ends_with_the_same_bytes(self):
        whole, optimizer = self.model(0)
        self.train(whole, optimizer, 0, 12)
        model, optimizer = self.model(TIERS["remote"])
        self.train(model, optimizer, 0, 6)
        saving = tidepool.torch.save(self.path, model, {"optimizer": optimizer.state_dict(), "at": 6}, rate="2M")
        self.train(model, optimizer, 6, 8)  # meanwhile: not in it
        info = saving.result()
        self.assertEqual(sorted(table.name for table in info.tables), ["things", "users"])
        other, optimizer = self.model(TIERS["direct"], prefix="new ")
        extra = tidepool.torch.restore(self.path, other)
        self.assertEqual(extra["at"], 6)
        optimizer.load_state_dict(extra["optimizer"])
        self.train(other, optimizer, 6, 12)
        self.same(other, whole)

    def test_a_look_ahead_loop_can_save_small_tables_at_once(self):
        space = tidepool.Space(self.space.far)  # 10 % of the tables
        self.addCleanup(space.close)
        collection = tidepool.torch.EmbeddingBagCollection(
            [
                tidepool.torch.EmbeddingBag(rows, 16, space=space, tier=TIERS["remote"], optimizer="adagrad")
                for rows in (100_000, 50, 3, 300, 1000)
            ]
        )
        bags = collection.bags
        batches = [[torch.randint(bag.num_embeddings, (64, 4)) for bag in bags] for _ in range(14)]
        for ahead in batches[:4]:
            collection.prefetch(ahead)
        for number in range(10):
            collection.prefetch(batches[number + 4])
            if number % 4 == 0:
                rows = [bag.weight for bag in bags]
                tidepool.torch.save(self.path, collection, kind="auto").result()
            collection(batches[number]).sum().backward()
        tidepool.torch.restore(self.path, other := copies_of(collection, self.space))
        for bag, saved in zip(other.bags, rows):
            self.assertTrue(torch.equal(bag.weight, saved))

    def test_a_loop_that_was_broken_off_goes_back_to_the_checkpoint(self):
        for tier in TIERS.values():
            path = self.path / str(tier)
            model, optimizer = self.model(tier, prefix=f"tier {tier} ")
            self.train(model, optimizer, 0, 3)
            tidepool.torch.save(path, model).result()
            saved = model.bags.bags["users"].weight
            batches = [torch.randint(ROWS, (16, 5)) for _ in range(4)]
            for ids in batches:
                model.bags.prefetch({"users": ids, "things": ids})
            kept = model.bags({"users": batches[0], "things": batches[0]})
            with self.assertRaisesRegex(tidepool.Conflict, "finish or drop them"):
                tidepool.torch.restore(path, model)
            tidepool.torch.drop_announced(model)
            tidepool.torch.restore(path, model)
            self.assertTrue(torch.equal(model.bags.bags["users"].weight, saved))
            kept.sum().backward()  # is a step all the same
            self.assertFalse(torch.equal(model.bags.bags["users"].weight, saved))
            for ids in batches:  # and the loop begins anew
                model.bags.prefetch({"users": ids, "things": ids})
            for ids in batches:
                model.bags({"users": ids, "things": ids}).sum().backward()
            tidepool.torch.restore(path, model)
            self.assertTrue(torch.equal(model.bags.bags["users"].weight, saved))
        with self.assertRaises(ValueError):
            tidepool.torch.drop_announced(torch.nn.Linear(2, 2))

    def test_rows_are_not_in_the_dense_part(self):
        model, _ = self.model(0)
        tidepool.torch.save(self.path, model).result()
        state = torch.load(io.BytesIO(tidepool.load_state(self.path)))
        self.assertIn("top.0.weight", state["model"])
        self.assertFalse([key for key in state["model"] if key.endswith("users.weight")])
        self.assertIn("bags.bags.users.weight", model.state_dict())

    def test_what_does_not_fit(self):
        model, _ = self.model(0)
        with self.assertRaisesRegex(ValueError, "no tidepool"):
            tidepool.torch.save(self.path, torch.nn.Linear(2, 2))
        with self.assertRaises(tidepool.NotFound):
            tidepool.torch.restore(self.path, model)
        tidepool.torch.save(self.path, model).result()
        with self.assertRaisesRegex(ValueError, "modules"):
            tidepool.torch.restore(self.path, model.bags)
        small, _ = self.model(0, rows=ROWS - 1)
        before = small.state_dict()
        with self.assertRaises(tidepool.NoSpace):
            tidepool.torch.restore(self.path, small)
        for key, value in small.state_dict().items():
            self.assertTrue(torch.equal(value, before[key]))
        model.bags.bags["users"].table.checkpoint(self.path, state=torch_bytes([1])).result()
        with self.assertRaisesRegex(ValueError, "no checkpoint of"):
            tidepool.torch.restore(self.path, model)

    def test_a_module_that_occurs_twice(self):
        bag = tidepool.torch.EmbeddingBag(ROWS, DIM, space=self.space, name="one")
        model = torch.nn.ModuleDict({"a": torch.nn.Sequential(bag), "b": bag})
        self.assertEqual(len(tidepool.torch.save(self.path, model).result().tables), 1)
        rows = bag.weight
        bag.table.write(torch.arange(5), torch.ones(5, DIM))
        tidepool.torch.restore(self.path, model)
        self.assertTrue(torch.equal(bag.weight, rows))


def torch_bytes(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


if __name__ == "__main__":
    unittest.main()
