# SPDX-License-Identifier: Apache-2.0
"""What is not possible is refused with the right exception, and leaves the table as it was."""

import array
import copy
import pickle
import unittest

import numpy

import tidepool
from tidepool import _core

ROWS, DIM = 100, 4
IDS = numpy.arange(6)
OFFSETS = numpy.array([0, 2, 6])
GRADIENTS = numpy.ones((2, DIM), numpy.float32)


def unaligned(values):
    memory = numpy.empty(values.nbytes + 1, numpy.uint8)
    shifted = memory[1:].view(values.dtype)
    shifted[:] = values
    return shifted


class Arguments(unittest.TestCase):
    def setUp(self):
        self.space = tidepool.Space(far=["cxl:16M"], threads=2)
        self.addCleanup(self.space.close)
        self.tables = [self.table(tier=tier) for tier in (0, 1)]

    def table(self, **options):
        settings = {"init": ("normal", 0, 1, 3), "dram": "16K", **options}
        return tidepool.Table(
            self.space, settings.pop("name", "t"), settings.pop("rows", ROWS), settings.pop("dim", DIM), **settings
        )

    def refused(self, kind, act, text=""):
        """act(table) raises and changes nothing."""
        for table in self.tables:
            before = table.read(numpy.arange(ROWS))
            with self.assertRaises(kind) as caught:
                act(table)
            self.assertIn(text, str(caught.exception))
            numpy.testing.assert_array_equal(table.read(numpy.arange(ROWS)), before)
            self.assertEqual(table.counts().steps, 0)

    def both(self, kind, ids, offsets, text="", weights=None, mode="sum"):
        self.refused(kind, lambda table: table.bag(ids, offsets, weights, mode), text)
        self.refused(kind, lambda table: table.update(ids, offsets, GRADIENTS, weights, mode), text)

    def test_ids(self):
        for wrong in (-1, ROWS, 2**63 - 1, -(2**63)):
            ids = IDS.copy()
            ids[3] = wrong
            self.both(IndexError, ids, OFFSETS, f"ids[3] is {wrong}")
            self.both(tidepool.BadId, ids, OFFSETS)
            self.refused(IndexError, lambda table: table.read(ids))
            self.refused(IndexError, lambda table: table.prefetch(ids))
            self.refused(IndexError, lambda table: table.write(ids, numpy.ones((6, DIM), numpy.float32)))
        for wrong in (numpy.float64, numpy.int32, numpy.uint64, numpy.bool_, ">i8", object, "U3"):
            self.both(TypeError, IDS.astype(wrong), OFFSETS, "int64")
        for wrong in ([0, 1, 2, 3, 4, 5], "ids", None, 5, {}, b"abcdefgh"):
            self.both(TypeError, wrong, OFFSETS, "ids")
        self.both(ValueError, IDS.reshape(2, 3), OFFSETS, "one dimension")
        self.both(ValueError, numpy.arange(12)[::2], OFFSETS, "contiguous")
        self.both(ValueError, unaligned(IDS), OFFSETS, "aligned")

    def test_masks_are_not_left_out(self):
        ids = numpy.ma.masked_array(IDS, IDS > 1)
        self.both(TypeError, ids, OFFSETS, "mask")
        self.refused(TypeError, lambda table: table.read(ids), "mask")
        self.refused(TypeError, lambda table: table.prefetch(ids), "mask")
        self.refused(TypeError, lambda table: table.write(IDS, numpy.ma.zeros((len(IDS), DIM), "f4")), "mask")

    def test_offsets(self):
        for wrong, text in (
            ([1, 2, 6], "begin with 0"),
            ([0, 7, 6], "offsets[2]"),
            ([0, 2, 5], "last offset"),
            ([0, 2, 7], "last offset"),
            ([0, -1, 6], "offsets[1]"),
            ([0, 2**63 - 1, 6], "offsets[2]"),
        ):
            self.both(tidepool.InvalidArgument, IDS, numpy.array(wrong), text)
            self.both(ValueError, IDS, numpy.array(wrong), text)
        self.both(TypeError, IDS, numpy.array([0, numpy.nan, 6]), "offsets")
        self.both(TypeError, IDS, numpy.array([0.0, 2.0, 6.0]), "float64")
        self.refused(ValueError, lambda table: table.bag(IDS, numpy.empty(0, numpy.int64)), "offsets")

    def test_weights_and_modes(self):
        self.both(TypeError, IDS, OFFSETS, "weights", numpy.ones(6))
        self.both(ValueError, IDS, OFFSETS, "weights", numpy.ones(5, numpy.float32))
        self.both(ValueError, IDS, OFFSETS, "mode", mode="max")
        self.both(TypeError, IDS, OFFSETS, "mode", mode=1)

    def test_gradients_and_outputs(self):
        for kind, wrong in (
            (TypeError, GRADIENTS.astype(numpy.float64)),
            (TypeError, GRADIENTS.astype(numpy.float16)),
            (TypeError, None),
            (ValueError, GRADIENTS[:1]),
            (ValueError, GRADIENTS[:, :3]),
            (ValueError, GRADIENTS.ravel()),
            (ValueError, numpy.asfortranarray(GRADIENTS)),
            (ValueError, numpy.broadcast_to(GRADIENTS[:1], (2, DIM))),
            (ValueError, GRADIENTS[::-1]),
        ):
            self.refused(kind, lambda table: table.update(IDS, OFFSETS, wrong), "gradients")
            if wrong is not None:
                self.refused(kind, lambda table: table.bag(IDS, OFFSETS, out=wrong), "out")
        frozen = GRADIENTS.copy()
        frozen.flags.writeable = False
        self.refused(ValueError, lambda table: table.bag(IDS, OFFSETS, out=frozen), "read-only")

    def test_outputs_over_the_ids(self):
        memory = numpy.zeros(64, numpy.uint8)
        ids = memory[:16].view(numpy.int64)
        out = memory[:32].view(numpy.float32).reshape(2, DIM)
        self.refused(ValueError, lambda table: table.bag(ids, numpy.array([0, 1, 2]), out=out), "memory")
        one, two = self.tables
        with self.assertRaisesRegex(ValueError, "memory"):  # of the other part's ids
            tidepool.bags([(one, IDS[:2], numpy.array([0, 1, 2]), None, "sum", out), (two, ids, numpy.array([0, 2]))])

    def test_one_wrong_part_stops_all(self):
        one, two = self.tables
        before = two.read(IDS)
        bad = IDS + ROWS
        with self.assertRaises(IndexError):
            tidepool.updates([(two, IDS, OFFSETS, GRADIENTS), (one, bad, OFFSETS, GRADIENTS)])
        numpy.testing.assert_array_equal(two.read(IDS), before)
        for wrong in ([1], ["abc"], [()], [("t", IDS, OFFSETS)], 5, [(one,)], [(one, IDS, OFFSETS, 1, 2, 3, 4)]):
            with self.assertRaises(TypeError):
                tidepool.bags(wrong)
        with tidepool.Space(threads=1) as other:
            elsewhere = tidepool.Table(other, "elsewhere", ROWS, DIM)
            with self.assertRaisesRegex(ValueError, "another space"):
                tidepool.bags([(one, IDS, OFFSETS), (elsewhere, IDS, OFFSETS)])

    def test_tables(self):
        wrong = (
            (ValueError, {"rows": 0}),
            (ValueError, {"rows": -1}),
            (TypeError, {"rows": 1.5}),
            (TypeError, {"rows": True}),
            (ValueError, {"rows": 2**60}),
            (ValueError, {"dim": 0}),
            (ValueError, {"dim": 4097}),
            (TypeError, {"dim": "4"}),
            (ValueError, {"dtype": "float64"}),
            (TypeError, {"dtype": numpy.float32}),
            (ValueError, {"optimizer": "lbfgs"}),
            (ValueError, {"ids": "sparse"}),
            (ValueError, {"lr": float("nan")}),
            (ValueError, {"lr": 1e300}),
            (TypeError, {"lr": "0.1"}),
            (ValueError, {"betas": (0.9, 1.0)}),
            (TypeError, {"betas": 0.9}),
            (ValueError, {"eps": -1.0}),
            (ValueError, {"momentum": -0.1}),
            (ValueError, {"weight_decay": float("inf")}),
            (ValueError, {"init": ("uniform", 1, 0)}),
            (ValueError, {"init": ("normal", 0, -1)}),
            (ValueError, {"init": ("uniform", 0, float("nan"))}),
            (ValueError, {"init": ("uniform", 0, 1, -1)}),
            (TypeError, {"init": ("uniform", 0)}),
            (TypeError, {"init": 5}),
            (ValueError, {"tier": -1}),
            (tidepool.NotFound, {"tier": 2}),
            (ValueError, {"tier": 1, "dram": "lots"}),
            (ValueError, {"tier": 1, "dram": -5}),
            (ValueError, {"tier": 1, "dram": 10}),
            (TypeError, {"tier": 1, "dram": 1e6}),
            (TypeError, {"name": 5}),
            (TypeError, {"colour": 5}),
            (tidepool.NoSpace, {"tier": 1, "rows": 10_000_000, "dim": 64}),
        )
        for kind, options in wrong:
            with self.subTest(options=options), self.assertRaises(kind):
                self.table(**options)
        with self.assertRaises(TypeError):
            tidepool.Table("space", "t", ROWS, DIM)
        with self.assertRaises(TypeError):
            self.tables[0].set_step(rate=1)
        with self.assertRaises(ValueError):
            self.tables[0].set_lr(float("inf"))

    def test_spaces(self):
        for kind, options in (
            (ValueError, {"far": ["cxl:lots"]}),
            (ValueError, {"far": ["disk:1G"]}),
            (ValueError, {"far": ["cxl:1G\0"]}),
            (TypeError, {"far": "cxl:1G"}),
            (TypeError, {"far": [5]}),
            (TypeError, {"agent": 5}),
            (ValueError, {"threads": -1}),
            (ValueError, {"threads": 10**6}),
            (TypeError, {"threads": 1.5}),
            (ValueError, {"timeout": 0}),
            (ValueError, {"timeout": float("nan")}),
        ):
            with self.subTest(options=options), self.assertRaises(kind):
                tidepool.Space(**options)

    def test_tiers_that_are_not_there(self):
        # They are opened when the first table needs them.
        with tidepool.Space(["numa:1000", "fabric", "fabric:1G"], agent="/nonexistent/agent.sock") as space:
            for tier, kind, said in (
                (1, tidepool.NotFound, "no such node"),
                (2, tidepool.Unreachable, "fabricmgr agent"),
                (3, tidepool.Unreachable, "/nonexistent/agent.sock"),
            ):
                with self.subTest(tier=tier), self.assertRaisesRegex(kind, said):
                    tidepool.Table(space, "none", 100, 8, tier=tier)

    def test_what_is_closed(self):
        table = self.tables[1]
        token = table.prefetch(IDS)
        table.close()
        table.close()
        self.assertTrue(table.closed)
        for act in (
            lambda: table.bag(IDS, OFFSETS),
            lambda: table.update(IDS, OFFSETS, GRADIENTS),
            lambda: table.read(IDS),
            lambda: table.write(IDS, numpy.ones((6, DIM), numpy.float32)),
            lambda: table.prefetch(IDS),
            lambda: table.counts(),
            lambda: table.set_lr(1),
            lambda: len(table),
        ):
            with self.assertRaisesRegex(RuntimeError, "closed") as caught:
                act()
            self.assertIsInstance(caught.exception, tidepool.Unusable)
        token.done()
        self.space.close()
        with self.assertRaises(tidepool.Unusable):
            self.tables[0].read(IDS)
        with self.assertRaises(tidepool.Unusable):
            self.table()
        with self.assertRaises(tidepool.Unusable):
            self.space.threads

    def test_copies_are_refused(self):
        for act in (copy.copy, copy.deepcopy, pickle.dumps):
            for thing in (self.tables[0], self.space):
                with self.assertRaisesRegex(TypeError, "belongs to its process"):
                    act(thing)

    def test_other_buffers_are_arrays(self):
        ids, offsets = array.array("q", [1, 2]), array.array("q", [0, 2])
        for table in self.tables:
            rows = table.read(numpy.array([1, 2]))
            numpy.testing.assert_array_equal(table.bag(ids, offsets)[0], rows[0] + rows[1])

    def test_errors_have_codes(self):
        with self.assertRaises(tidepool.Error) as caught:
            self.tables[0].bag(IDS, OFFSETS[::-1].copy())
        self.assertIs(caught.exception.code, tidepool.ErrorCode.INVALID_ARGUMENT)
        with self.assertRaises(tidepool.Error) as caught:
            self.table(tier=7)
        self.assertIs(caught.exception.code, tidepool.ErrorCode.NOT_FOUND)

        for code in tidepool.ErrorCode:
            self.assertEqual(_core.error_code_name(code), code.name.lower().replace("_", "-"))


if __name__ == "__main__":
    unittest.main()
