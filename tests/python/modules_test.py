# SPDX-License-Identifier: Apache-2.0
"""tidepool.torch as modules: the inputs of torch.nn.EmbeddingBag, its results and its state."""

import io
import unittest

import numpy
import torch

import tidepool
import tidepool.torch
from places import TIERS, Everywhere

ROWS, DIM = 500, 8


def twins(space, tier, **options):
    """torch's module and Tidepool's with the same rows."""
    theirs = torch.nn.EmbeddingBag(
        ROWS, DIM, sparse=True, **{key: options[key] for key in ("mode", "include_last_offset") if key in options}
    )
    ours = tidepool.torch.EmbeddingBag(
        ROWS, DIM, space=space, tier=tier, dram="16K", _weight=theirs.weight, **options
    )
    return theirs, ours


class Modules(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.places = Everywhere()
        self.addCleanup(self.places.close)
        self.space = self.places.space

    def compare(self, theirs, ours, *arguments):
        torch.testing.assert_close(ours(*arguments), theirs(*arguments), atol=2e-6, rtol=1e-6)

    def test_inputs(self):
        for tier in TIERS.values():
            for mode in ("sum", "mean"):
                theirs, ours = twins(self.space, tier, mode=mode)
                for kind in (torch.int64, torch.int32):
                    flat = torch.randint(ROWS, (40,)).to(kind)
                    self.compare(theirs, ours, flat, torch.tensor([0, 5, 5, 30]).to(kind))
                    self.compare(theirs, ours, torch.randint(ROWS, (7, 4)).to(kind))
                self.compare(theirs, ours, torch.randint(ROWS, (4, 7)).t())
                self.compare(theirs, ours, torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))
                self.assertEqual(ours(torch.empty((0, 3), dtype=torch.int64)).shape, (0, DIM))
                theirs, ours = twins(self.space, tier, mode=mode, include_last_offset=True)
                self.compare(theirs, ours, torch.randint(ROWS, (9,)), torch.tensor([0, 4, 9]))

    def test_torchs_threads(self):
        self.assertTrue(tidepool._core.share_openmp_threads())
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        theirs, ours = twins(self.space, TIERS["direct"])
        ids = torch.randint(ROWS, (3000, 10))  # more than one thread does alone
        first = ours(ids)
        for threads in (1, self.space.threads, self.space.threads + 3):
            torch.set_num_threads(threads)
            self.compare(theirs, ours, ids)  # torch's own are awake
            self.assertTrue(torch.equal(ours(ids), first), threads)

    def test_weights_of_samples(self):
        for tier in TIERS.values():
            theirs, ours = twins(self.space, tier, mode="sum")
            ids, weights = torch.randint(ROWS, (6, 5)), torch.rand(6, 5)
            self.compare(theirs, ours, ids, None, weights)
            offsets = torch.tensor([0, 10, 20])
            self.compare(theirs, ours, ids.reshape(-1), offsets, weights.reshape(-1))
            with self.assertRaisesRegex(NotImplementedError, "detach"):
                ours(ids, None, weights.requires_grad_())
            for kind, wrong in (
                (ValueError, torch.rand(5, 6)),
                (TypeError, torch.rand(6, 5).double()),
                (TypeError, 1),
            ):
                with self.assertRaises(kind):
                    ours(ids, None, wrong)
            _, mean = twins(self.space, tier, mode="mean")
            with self.assertRaises(NotImplementedError):
                mean(ids, None, torch.rand(6, 5))

    def test_what_is_refused(self):
        _, ours = twins(self.space, 1)
        ids = torch.randint(ROWS, (6,))
        for kind, arguments in (
            (TypeError, (ids.float(), torch.tensor([0]))),
            (TypeError, (ids, torch.tensor([0.0]))),
            (TypeError, (ids, torch.tensor([0.0, float("nan")]))),
            (TypeError, ([1, 2], torch.tensor([0]))),
            (ValueError, (ids,)),
            (ValueError, (ids.reshape(2, 3), torch.tensor([0]))),
            (ValueError, (ids.reshape(1, 2, 3),)),
            (ValueError, (ids, torch.tensor([1]))),
            (ValueError, (ids, torch.tensor([0, 7]))),
            (ValueError, (ids, torch.tensor([[0]]))),
            (IndexError, (ids + ROWS, torch.tensor([0]))),
            (IndexError, (-1 - ids.reshape(2, 3),)),
            (TypeError, (torch.empty(2, 3, dtype=torch.int64, device="meta"),)),
        ):
            with self.assertRaises(kind):
                ours(*arguments)
        for options in (
            {"max_norm": 1.0},
            {"scale_grad_by_freq": True},
            {"padding_idx": 0},
            {"mode": "max"},
            {"sparse": False},
        ):
            with self.assertRaises(NotImplementedError):
                tidepool.torch.EmbeddingBag(ROWS, DIM, **options)

    def test_state(self):
        for tier in TIERS.values():
            theirs, ours = twins(self.space, tier)
            state = ours.state_dict()
            self.assertEqual(list(state), ["weight"])
            self.assertTrue(torch.equal(state["weight"], theirs.weight))
            other = tidepool.torch.EmbeddingBag(ROWS, DIM, space=self.space, tier=tier, dram="16K")
            self.assertFalse(torch.equal(other.weight, theirs.weight))
            file = io.BytesIO()
            torch.save(torch.nn.Sequential(ours).state_dict(), file)
            file.seek(0)
            torch.nn.Sequential(other).load_state_dict(torch.load(file))
            self.assertTrue(torch.equal(other.weight, theirs.weight))
            torch.nn.EmbeddingBag(ROWS, DIM).load_state_dict(state)
            with self.assertRaisesRegex(RuntimeError, "shape"):
                other.load_state_dict({"weight": torch.zeros(3, 3)})
            with self.assertRaisesRegex(RuntimeError, "Missing"):
                other.load_state_dict({})
            with self.assertRaisesRegex(RuntimeError, "Unexpected"):
                other.load_state_dict({"weight": state["weight"], "more": state["weight"]})
            self.assertTrue(torch.equal(other.weight, theirs.weight))
        hashed = tidepool.torch.EmbeddingBag(ROWS, DIM, space=self.space, tier=0, ids="hashed")
        with self.assertRaises(NotImplementedError):
            hashed.state_dict()

    def test_evaluation_brings_no_rows_into_being(self):
        module = tidepool.torch.EmbeddingBag(100, DIM, space=self.space, tier=0, ids="hashed", mode="sum")
        seen = module(torch.arange(100).reshape(50, 2)).detach()  # it is full now
        with torch.no_grad():
            again = module(torch.arange(200).reshape(100, 2))
        self.assertTrue(torch.equal(again[:50], seen))
        self.assertEqual(len(module.table), 100)
        with self.assertRaises(tidepool.NoSpace):
            module(torch.arange(200).reshape(100, 2))

    def test_begins_as_torch_does(self):
        modules = []
        for _ in range(2):
            torch.manual_seed(7)
            modules.append(tidepool.torch.EmbeddingBag(5000, 16))
        self.assertEqual(modules[0].table.space, tidepool.torch.default_space())
        weight = modules[0].weight
        self.assertTrue(torch.equal(weight, modules[1].weight))
        self.assertAlmostEqual(weight.mean().item(), 0, delta=0.02)
        self.assertAlmostEqual(weight.std().item(), 1, delta=0.02)
        self.assertEqual(modules[0].mode, torch.nn.EmbeddingBag(1, 1).mode)
        self.assertIn("5000, 16", repr(modules[0]))
        self.assertEqual(sum(p.numel() for p in modules[0].parameters()), 0)

    def test_torchs_default_type_does_not_matter(self):
        ids = torch.tensor([[1, 2], [3, 3]])
        module = tidepool.torch.EmbeddingBag(ROWS, DIM, mode="sum", space=self.space, tier=1, dram="16K", lr=0.5)
        before, out = module.weight, module(ids)
        self.addCleanup(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        other = tidepool.torch.EmbeddingBag(ROWS, DIM, mode="sum", space=self.space, tier=1, dram="16K", lr=0.5)
        self.assertEqual({p.dtype for p in other.parameters()}, {torch.float32})
        other.load_state_dict(module.state_dict())
        for one in (module, other, tidepool.torch.EmbeddingBagCollection([module])):
            got = one([ids]) if one.__class__.__name__.endswith("Collection") else one(ids)
            self.assertTrue(torch.equal(got, out))
            self.assertEqual(got.dtype, torch.float32)
        other(ids).double().pow(2).sum().backward()
        self.assertFalse(torch.equal(other.weight, before))
        self.assertEqual(other.state_dict()["weight"].dtype, torch.float32)
        other.load_state_dict({"weight": torch.ones(ROWS, DIM)})  # float64
        self.assertTrue(torch.equal(other.weight, torch.ones(ROWS, DIM, dtype=torch.float32)))

    def test_collections(self):
        for tier in TIERS.values():
            pairs = [twins(self.space, tier, mode=mode) for mode in ("sum", "mean", "sum")]
            together = tidepool.torch.EmbeddingBagCollection([ours for _, ours in pairs])
            flat = (torch.randint(ROWS, (9,)), torch.arange(6))
            batch = [torch.randint(ROWS, (6, 3)), flat, torch.randint(ROWS, (6, 1))]
            parts = [theirs(*(b if isinstance(b, tuple) else (b,))) for (theirs, _), b in zip(pairs, batch)]
            together.prefetch(batch)
            out = together(batch)
            torch.testing.assert_close(out, torch.cat(parts, 1), atol=2e-6, rtol=1e-6)
            for ours, theirs in zip(together.split(out), parts):
                torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-6)
            with self.assertRaisesRegex(ValueError, "number of bags"):
                together([batch[0][:5], *batch[1:]])
            with self.assertRaisesRegex(ValueError, "entries"):
                together(batch[:2])
            self.assertEqual(set(together.state_dict()), {f"bags.{i}.weight" for i in range(3)})
        named = tidepool.torch.EmbeddingBagCollection({"a": pairs[0][1], "b": pairs[1][1]})
        out = named.split(named({"b": batch[0], "a": batch[2]}))
        torch.testing.assert_close(out["a"], pairs[0][0](batch[2]), atol=2e-6, rtol=1e-6)
        with self.assertRaises(ValueError):
            named({"a": batch[0]})
        with self.assertRaises(ValueError):
            tidepool.torch.EmbeddingBagCollection([])
        with self.assertRaises(TypeError):
            tidepool.torch.EmbeddingBagCollection([torch.nn.EmbeddingBag(3, 3)])
        elsewhere = tidepool.torch.EmbeddingBag(ROWS, DIM)
        with self.assertRaisesRegex(ValueError, "another space"):
            tidepool.torch.EmbeddingBagCollection([pairs[0][1], elsewhere])

    def test_announced_batches(self):
        module = tidepool.torch.EmbeddingBag(ROWS, DIM, space=self.space, tier=TIERS["remote"], dram="16K")
        batches = [torch.randint(ROWS, (4, 5)) for _ in range(300)]
        for number, batch in enumerate(batches):
            for ahead in batches[number + 1 : number + 2]:
                module.prefetch(ahead)
            if number < 150:  # results that nobody learns from must not keep their rows: too many would be announced
                module(batch)
            elif number % 2 == 0:
                module(batch).sum().backward()
            else:
                with torch.no_grad():
                    module(batch)
        self.assertEqual(len(module._ahead), 0)
        self.assertGreater(module.table.counts().prefetched, 0)
        for batch in batches[:5]:
            module.prefetch(batch)
        with torch.no_grad():
            module(batches[3])  # those before it are passed over
        self.assertEqual(len(module._ahead), 1)
        module(torch.randint(ROWS, (4, 5)))  # was not announced
        self.assertEqual(len(module._ahead), 1)

    def test_results_that_are_kept_do_not_stop_announcements(self):
        module = tidepool.torch.EmbeddingBag(ROWS, DIM, space=self.space, tier=TIERS["remote"], dram="16K")
        batches = [torch.randint(ROWS, (4, 5)) for _ in range(300)]
        kept = []
        with self.assertRaisesRegex(tidepool.NoSpace, "finish or drop some"):
            for batch in batches:
                module.prefetch(batch)
                kept.append(module(batch))  # to be looked at later, and nobody said that there is no gradient
        self.assertEqual(len(kept), 120)
        module.drop_announced()
        for batch in batches[:120]:
            module.prefetch(batch)
        together = tidepool.torch.EmbeddingBagCollection([module])
        together.drop_announced()
        self.assertEqual(len(module._ahead), 0)
        module.prefetch(batches[0])
        for result, batch in zip(kept, batches):
            self.assertTrue(torch.equal(result, module(batch)))

    def test_tensors_are_not_copied(self):
        table = tidepool.Table(self.space, "t", ROWS, DIM)
        ids = torch.arange(10)
        out = torch.empty(1, DIM)
        self.assertEqual(table.bag(ids, torch.tensor([0, 10]), out=out).ctypes.data, out.data_ptr())
        numpy.testing.assert_array_equal(out.numpy(), table.bag(ids.numpy(), numpy.array([0, 10])))


if __name__ == "__main__":
    unittest.main()
