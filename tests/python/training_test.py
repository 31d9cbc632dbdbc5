# SPDX-License-Identifier: Apache-2.0
"""Training with tidepool.torch beside torch.nn.EmbeddingBag and torch.optim; the same bits in every tier."""

import unittest

import torch
import torch.utils.checkpoint

import tidepool.torch
from places import TIERS, Everywhere

ROWS, DIM, BAGS, STEPS = 300, 8, 40, 12


def batches(seed, every_row):
    """A few rows often, most seldom; or every row in every batch."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        ids = (ROWS * torch.rand(BAGS * 18, generator=random) ** 3).long()
        if every_row:
            ids[:ROWS] = torch.arange(ROWS)
            ids = ids[torch.randperm(len(ids), generator=random)]
        ids = ids.reshape(BAGS, 18)
        yield ids, torch.randn((BAGS, DIM), generator=random)


class Training(unittest.TestCase):
    def setUp(self):
        self.places = Everywhere()
        self.addCleanup(self.places.close)
        torch.manual_seed(3)

    def train(self, module, optimizer, data):
        head = torch.nn.Linear(DIM, DIM)
        with torch.no_grad():
            head.weight.copy_(torch.eye(DIM) * 0.5)
            head.bias.zero_()
        losses = []
        for ids, wanted in data:
            if optimizer:
                optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(torch.tanh(head(module(ids))), wanted)
            loss.backward()
            if optimizer:
                optimizer.step()
            losses.append(loss.item())
        return losses

    def beside_torch(self, peer, optimizer, tolerance=2e-5, sparse=True, every_row=False, mode="sum", **options):
        start = torch.randn(ROWS, DIM) * 0.1
        data = list(batches(11, every_row))
        theirs = torch.nn.EmbeddingBag(ROWS, DIM, mode=mode, sparse=sparse, _weight=start.clone())
        expected = self.train(theirs, peer(theirs.parameters()), data)
        first = None
        for tier in TIERS.values():
            ours = tidepool.torch.EmbeddingBag(
                ROWS, DIM, mode=mode, space=self.places.space, tier=tier, dram="20K", _weight=start,
                optimizer=optimizer, **options,
            )
            losses = self.train(ours, None, data)
            torch.testing.assert_close(ours.weight, theirs.weight.detach(), atol=tolerance, rtol=1e-4)
            torch.testing.assert_close(losses, expected, atol=tolerance, rtol=1e-4)
            self.assertFalse(torch.equal(ours.weight, start))
            first = (ours.weight, losses) if first is None else first
            self.assertTrue(torch.equal(ours.weight, first[0]))
            self.assertEqual(losses, first[1])

    def test_sgd(self):
        for mode in ("sum", "mean"):
            self.beside_torch(lambda p: torch.optim.SGD(p, lr=0.5), "sgd", lr=0.5, mode=mode)

    def test_momentum(self):
        # torch's velocities move rows that no look-up names, too: the same where every batch has every row.
        self.beside_torch(
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            "momentum", sparse=False, every_row=True, lr=0.1, momentum=0.9,
        )

    def test_weight_decay(self):
        self.beside_torch(
            lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
            "sgd", sparse=False, every_row=True, lr=0.1, weight_decay=0.01,
        )

    def test_adagrad(self):
        self.beside_torch(lambda p: torch.optim.Adagrad(p, lr=0.1), "adagrad", lr=0.1)

    def test_adam(self):
        # Where a gradient is next to nothing, its rounding decides the direction of Adam's first step.
        self.beside_torch(lambda p: torch.optim.SparseAdam(list(p), lr=0.01), "adam", 1e-4, lr=0.01)

    def module(self, **options):
        return tidepool.torch.EmbeddingBag(
            ROWS, DIM, mode="sum", space=self.places.space, tier=1, dram="20K", lr=0.5, **options
        )

    def test_one_step_for_each_backward(self):
        module, ids = self.module(), torch.tensor([[1, 2]])
        before = module.weight
        loss = module(ids).sum()
        loss.backward(retain_graph=True)
        self.assertEqual(module.table.counts().steps, 1)
        loss.backward()
        self.assertEqual(module.table.counts().steps, 2)
        with self.assertRaises(RuntimeError):
            loss.backward()
        torch.testing.assert_close(before[1:3] - module.weight[1:3], torch.ones(2, DIM))
        self.assertTrue(all(parameter.grad is None for parameter in module.parameters()))
        module.set_lr(0)
        before = module.weight
        module(ids).sum().backward()
        self.assertTrue(torch.equal(module.weight, before))

    def test_two_look_ups_in_one_loss_raise(self):
        module, ids, others = self.module(name="items"), torch.tensor([[1, 2]]), torch.tensor([[2], [3]])
        before = module.weight
        alone = tidepool.torch.EmbeddingBagCollection([module])
        for loss in (
            lambda: (module(ids) * module(others[:1])).sum(),
            lambda: module(ids).sum() + module(others).sum() + module(ids).sum(),
            lambda: torch.relu(module(ids) - module(ids)).sum(),
            lambda: module(ids).sum() + alone([others]).sum(),
        ):
            with self.assertRaisesRegex(NotImplementedError, "table items.*torch.cat"):
                loss().backward()
            kept = loss()
            with self.assertRaisesRegex(NotImplementedError, "torch.cat"):
                torch.autograd.grad(kept, list(module.parameters()))
        self.assertEqual(module.table.counts().steps, 0)
        self.assertTrue(torch.equal(module.weight, before), "neither step is taken")
        for key, name in (("neg", "pos"), (1, 0)):
            bags = {"pos": module, "neg": module} if key == "neg" else [module, module]
            with self.assertRaisesRegex(ValueError, rf"bags\[{key!r}\]: table items .*bags\[{name!r}\].*torch.cat"):
                tidepool.torch.EmbeddingBagCollection(bags)

    def test_one_look_up_of_both_is_torchs_step(self):
        start = torch.randn(ROWS, DIM) * 0.1
        theirs = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True, _weight=start.clone())
        ours = self.module(optimizer="adagrad", _weight=start)
        peer = torch.optim.Adagrad(theirs.parameters(), lr=0.5)
        for _ in range(20):
            positive, negative = torch.randint(ROWS, (2, 30, 1))
            peer.zero_grad()
            torch.nn.functional.softplus((theirs(negative) * theirs(positive)).sum(1)).sum().backward()
            peer.step()
            a, b = ours(torch.cat([positive, negative])).split([30, 30])
            torch.nn.functional.softplus((b * a).sum(1)).sum().backward()
        torch.testing.assert_close(ours.weight, theirs.weight.detach(), atol=2e-5, rtol=1e-4)
        self.assertEqual(ours.table.counts().steps, 20)

    def test_look_ups_of_other_losses_do_not_matter(self):
        module, ids = self.module(), torch.tensor([[1, 2]])
        module(ids)  # dropped
        results = [module(ids) for _ in range(60)]  # kept
        with torch.no_grad():
            module(ids)
        module(ids).sum().backward()
        for result in results:
            result.sum().backward()  # each its own
        self.assertEqual(module.table.counts().steps, 61)
        (module(ids).sum() + module(ids).detach().sum()).backward()
        frozen = module(ids)
        module.requires_grad_(False)
        (frozen.sum() + module(ids).sum()).backward()
        module.requires_grad_(True)
        self.assertEqual(module.table.counts().steps, 63)
        loss = module(ids).sum()
        loss.backward(retain_graph=True)
        with self.assertRaises(NotImplementedError):
            (loss + module(ids).sum()).backward()  # the first one's graph is there again
        self.assertEqual(module.table.counts().steps, 64)

        def recomputed(anchor):
            return module(ids) * anchor

        factor = torch.ones(1, requires_grad=True)
        torch.utils.checkpoint.checkpoint(recomputed, factor, use_reentrant=False).sum().backward()
        self.assertEqual(module.table.counts().steps, 65)

    def test_kept_results_are_not_looked_at_for_ever(self):
        module, ids = self.module(), torch.tensor([[1, 2]])
        losses = []
        for _ in range(200):
            losses.append(module(ids).sum())
            losses[-1].backward()
        del losses[100:]
        self.assertLess(len(tidepool.torch._recorded.recorded_of(module.table)), 40)

    def test_no_steps_where_torch_has_none(self):
        module, ids = self.module(), torch.tensor([[1, 2]])
        with torch.no_grad():
            self.assertFalse(module(ids).requires_grad)
        module.requires_grad_(False)
        self.assertFalse(module(ids).requires_grad)
        module.requires_grad_(True)
        out = module(ids)
        ids[0, 0] = 7
        with self.assertRaisesRegex(RuntimeError, "modified"):
            out.sum().backward()
        self.assertEqual(module.table.counts().steps, 0)

    def test_torch_optimizers_leave_tables_alone(self):
        model = torch.nn.Sequential(self.module(), torch.nn.Linear(DIM, 1))
        optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)
        model(torch.tensor([[1, 2]])).sum().backward()
        after = model[0].weight
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        self.assertTrue(torch.equal(model[0].weight, after))

    def test_collections_take_the_steps_of_their_modules(self):
        apart = [self.module(init=("normal", 0, 1, seed)) for seed in range(3)]
        together = tidepool.torch.EmbeddingBagCollection(
            [self.module(init=("normal", 0, 1, seed)) for seed in range(3)]
        )
        together.bags[1].requires_grad_(False)
        head = torch.nn.Linear(3 * DIM, 1)
        for ids, _ in batches(5, False):
            parts = [module(ids) for module in apart]
            parts[1] = parts[1].detach()
            head(torch.cat(parts, 1)).square().mean().backward()
            head(together([ids] * 3)).square().mean().backward()
        for one, other in zip(apart, together.bags):
            self.assertTrue(torch.equal(one.weight, other.weight))


if __name__ == "__main__":
    unittest.main()
