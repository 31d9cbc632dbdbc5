# SPDX-License-Identifier: Apache-2.0
"""Tensors that calls of tidepool.torch take as they are, those that they copy, and what is kept for backward."""

import unittest

import torch

import tidepool
import tidepool.torch
from places import TIERS, Everywhere

ROWS, DIM = 200, 8


class Subclass(torch.Tensor):
    """As libraries have them, with a torch.Tensor's behaviour."""


class Calls(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(2)
        self.places = Everywhere()
        self.addCleanup(self.places.close)

    def bag(self, tier=0, **options):
        settings = {"mode": "sum", "lr": 0.5, "dram": "16K", **options}
        return tidepool.torch.EmbeddingBag(ROWS, DIM, space=self.places.space, tier=tier, **settings)

    def close(self, one, other):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-6)

    def test_tensors_with_gaps(self):
        wide = torch.randint(ROWS, (6, 8))
        line, ends = torch.randint(ROWS, (24,)), torch.tensor([0, -1, 5, -1, 12, -1])
        for tier in TIERS.values():
            module = self.bag(tier)
            rows = module.weight
            for ids in (wide[:, :1], wide[:, ::2], wide[::2], wide.t(), wide[:1].expand(4, 8), wide[:, :1].int()):
                weights = torch.rand(ids.shape[0], 16)[:, : 2 * ids.shape[1] : 2]
                self.close(module(ids), rows[ids.long()].sum(1))
                self.close(module(ids, None, weights), (rows[ids.long()] * weights[..., None]).sum(1))
                module.prefetch(ids)
                module(ids).sum().backward()
                rows = module.weight
            every_second = line[::2]
            expected = torch.stack([rows[every_second[first:last]].sum(0) for first, last in ((0, 5), (5, 12))])
            module.prefetch(every_second)
            self.close(module(every_second, ends[::2][:2]), expected)
            weights = torch.rand(24)[::2]
            weighted = (rows[every_second] * weights[:, None]).sum(0, keepdim=True)
            self.close(module(every_second, torch.tensor([0]), weights), weighted)
            last = self.bag(tier, include_last_offset=True, _weight=rows)
            for offsets in (ends[::2], ends[::2].int()):
                self.close(last(every_second, offsets), expected)

    def test_subclasses_of_tensors(self):
        module = self.bag()
        ids = torch.randint(ROWS, (6, 3))
        expected = module(ids).detach()
        for kind in (torch.int64, torch.int32):
            given = ids.to(kind).as_subclass(Subclass)
            with torch.no_grad():
                self.assertTrue(torch.equal(module(given, None, torch.ones(6, 3).as_subclass(Subclass)), expected))
            offsets = (torch.arange(6) * 3).as_subclass(Subclass)
            self.assertTrue(torch.equal(module(given.reshape(-1), offsets).detach(), expected))
        module(given).sum().backward()
        self.assertEqual(module.table.counts().steps, 1)
        frozen = torch.nn.Parameter(ids, requires_grad=False)
        self.assertEqual(module(frozen).shape, (6, DIM))

    def test_no_bags(self):
        none, start = torch.empty(0, dtype=torch.int64), torch.tensor([0])
        module, last = self.bag(), self.bag(include_last_offset=True)
        pair = tidepool.torch.EmbeddingBagCollection([module, last])
        for act in (
            lambda: module(none, none),
            lambda: module(torch.empty((0, 3), dtype=torch.int32)),
            lambda: last(none, start),
            lambda: pair([(none, none), (none, start)]).reshape(-1, DIM),
        ):
            self.assertEqual(act().shape, (0, DIM))
            act().sum().backward()
        empty = torch.empty((3, 0), dtype=torch.int64)
        self.assertTrue(torch.equal(pair([empty, empty]), torch.zeros(3, 2 * DIM)))

    def test_where_there_is_no_gradient(self):
        one, two = self.bag(), self.bag()
        pair, ids = tidepool.torch.EmbeddingBagCollection([one, two]), torch.randint(ROWS, (5, 4))
        expected = pair([ids, ids]).detach()
        for guard in (torch.no_grad, torch.inference_mode):
            with guard():
                out = pair([ids, ids])
            self.assertFalse(out.requires_grad)
            self.assertEqual(out.is_inference(), guard is torch.inference_mode)
            self.assertTrue(torch.equal(out, expected))
        one.requires_grad_(False)
        self.assertTrue(pair([ids, ids]).requires_grad)
        pair([ids, ids]).sum().backward()
        self.assertEqual([module.table.counts().steps for module in (one, two)], [0, 1])
        pair.requires_grad_(False)
        self.assertFalse(pair([ids, ids]).requires_grad)
        with torch.no_grad():
            pair.requires_grad_(True)
        out = pair([ids, ids])
        self.assertTrue(out.requires_grad and out.grad_fn is not None)
        out.sum().backward()
        self.assertEqual([module.table.counts().steps for module in (one, two)], [1, 2])

    def test_training_after_inference(self):
        module = self.bag()
        ids = torch.randint(ROWS, (5, 4))
        with torch.inference_mode():
            module(ids)  # 2-D inputs of one shape share offsets
        module(ids).sum().backward()
        self.assertEqual(module.table.counts().steps, 1)

    def test_announced_batches_without_gradient(self):
        pair = tidepool.torch.EmbeddingBagCollection([self.bag(TIERS["remote"]), self.bag(TIERS["direct"])])
        line, starts = torch.randint(ROWS, (20,)), torch.arange(5) * 4
        batch = [torch.randint(ROWS, (5, 4)).int(), (line, starts)]
        for guard in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            pair.requires_grad_(guard is not torch.enable_grad)
            pair.prefetch(batch)
            tokens = [module._ahead[0][1] for module in pair.bags]
            with guard():
                pair(batch)
            self.assertTrue(all(token.finished for token in tokens))
            self.assertEqual([len(module._ahead) for module in pair.bags], [0, 0])
        pair.requires_grad_(True)
        pair.prefetch(batch)
        tokens = [module._ahead[0][1] for module in pair.bags]
        out = pair(batch)
        self.assertFalse(any(token.finished for token in tokens))
        out.sum().backward()
        self.assertTrue(all(token.finished for token in tokens))

    def test_what_changes_before_backward(self):
        def tensors():
            return torch.randint(ROWS, (8,)), torch.tensor([0, 3, 8]), torch.rand(8)

        for last in (False, True):
            module = self.bag(include_last_offset=last)
            before = module.weight
            # Of offsets that lack the last one a copy is used: theirs to change.
            for changed, noticed in ((0, True), (1, last), (2, True)):
                arguments = tensors()
                arguments = (arguments[0], arguments[1] if last else arguments[1][:2], arguments[2])
                out = module(*arguments)
                arguments[changed][0] += 1
                if noticed:
                    with self.assertRaisesRegex(RuntimeError, "modified"):
                        out.sum().backward()
                    self.assertTrue(torch.equal(module.weight, before))
                else:
                    out.sum().backward()
                    self.assertFalse(torch.equal(module.weight, before))
                    before = module.weight
            out = module(arguments[0].reshape(2, 4), None, arguments[2].reshape(2, 4))
            arguments[2].mul_(2)
            with self.assertRaisesRegex(RuntimeError, "modified"):
                out.sum().backward()
            ids = torch.randint(ROWS, (2, 4)).int()
            out = module(ids)
            ids[0, 0] = (ids[0, 0] + 1) % ROWS
            out.sum().backward()  # int32 ids were copied
            out = module(torch.randint(ROWS, (2, 4)))
            out.sum().backward()
            with self.assertRaisesRegex(RuntimeError, "second time"):
                out.sum().backward()

    def test_memory_that_moves_before_backward(self):
        module, last = self.bag(init="zero"), self.bag(init="zero", include_last_offset=True)
        expected = torch.zeros(ROWS, DIM)
        expected[:60] = -0.5
        for use, ids, offsets, weights in (
            (module, torch.arange(60).reshape(20, 3), None, torch.ones(20, 3)),
            (last, torch.arange(60), torch.arange(21) * 3, torch.ones(60)),
        ):
            out = use(ids, offsets, weights)
            for tensor in (ids, offsets, weights):
                if tensor is not None:
                    before = tensor.data_ptr()
                    tensor.share_memory_()  # as sending it to a process does
                    self.assertNotEqual(tensor.data_ptr(), before)
            other = [torch.full((60,), 150) for _ in range(100)]  # where it was
            out.sum().backward()
            del other
            self.assertTrue(torch.equal(use.weight, expected))

    def test_collections_that_change(self):
        one, two, three = self.bag(), self.bag(), self.bag()
        ids = torch.randint(ROWS, (5, 4))
        listed = tidepool.torch.EmbeddingBagCollection([one, two])
        named = tidepool.torch.EmbeddingBagCollection({"one": one, "two": two})
        listed([ids, ids]), named({"two": ids, "one": ids})
        listed.bags[1] = three
        named.bags["two"] = three
        both = torch.cat([one(ids), three(ids)], 1)
        self.assertTrue(torch.equal(listed((ids, ids)), both))
        self.assertTrue(torch.equal(named({"two": ids, "one": ids}), both))
        self.assertTrue(torch.equal(named([ids, ids]), both))
        listed.bags.append(two)
        del named.bags["one"]
        self.assertTrue(torch.equal(listed([ids] * 3), torch.cat([both, two(ids)], 1)))
        self.assertTrue(torch.equal(named({"two": ids}), three(ids)))
        with self.assertRaisesRegex(ValueError, "2 entries; there are 3 tables"):
            listed([ids, ids])
        with self.assertRaisesRegex(ValueError, "no table called 'one'; tables are 'two'"):
            named({"one": ids, "two": ids})

    def test_tensors_that_workers_share(self):
        module = self.bag()
        data = [torch.randint(ROWS, (4,)) for _ in range(40)]
        loader = torch.utils.data.DataLoader(data, batch_size=10, num_workers=2)
        rows = module.weight
        for number, ids in enumerate(loader):
            self.assertTrue(ids.is_shared())
            with torch.no_grad():
                self.close(module(ids), rows[ids].sum(1))
            self.assertTrue(torch.equal(ids, torch.stack(data[10 * number : 10 * number + 10])))


if __name__ == "__main__":
    unittest.main()
