# SPDX-License-Identifier: Apache-2.0
"""module.weight: read as torch's, while whatever would change rows through it raises and says what does."""

import copy
import io
import unittest

import numpy
import torch

import tidepool
import tidepool.torch

ROWS, DIM = 40, 8


class Weights(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)
        self.start = torch.randn(ROWS, DIM)
        space = tidepool.Space(["cxl:64M"], threads=1)
        self.addCleanup(space.close)
        self.bag = tidepool.torch.EmbeddingBag(
            ROWS, DIM, mode="sum", space=space, _weight=self.start, lr=0.5, name="items"
        )

    def refused(self, act, word):
        with self.assertRaisesRegex(NotImplementedError, "table items.*load_state_dict") as caught:
            act()
        self.assertIn(word, str(caught.exception))
        self.assertTrue(torch.equal(self.bag.weight, self.start))

    def test_what_would_change_it_raises(self):
        bag, other = self.bag, torch.ones(ROWS, DIM)
        init = torch.nn.init

        def set_item():
            bag.weight[3] = 0

        def add():
            bag.weight += 1

        def set_data():
            bag.weight.data = other

        def set_gradient():
            bag.weight.grad = other

        def freeze():
            bag.weight.requires_grad = False

        def set_all():
            bag.weight = other

        def set_parameter():
            bag.weight = torch.nn.Parameter(other)

        def to_array():
            numpy.add(bag.weight.detach(), 1, out=bag.weight.numpy())

        calls = {
            "xavier": (lambda: init.xavier_uniform_(bag.weight), "uniform_"),
            "normal": (lambda: init.normal_(bag.weight, 0, 1), "normal_"),
            "zeros": (lambda: init.zeros_(bag.weight), "zero_"),
            "data": (set_data, "setting .data"),
            "of data": (lambda: bag.weight.data.uniform_(-0.1, 0.1), "uniform_"),
            "of a row": (lambda: bag.weight[0].fill_(0), "fill_"),
            "of a view": (lambda: bag.weight.t()[:4].zero_(), "zero_"),
            "of a part": (lambda: bag.weight.split(5)[1].zero_(), "zero_"),
            "detached": (lambda: bag.weight.detach().mul_(2), "mul_"),
            "copy": (lambda: bag.weight.copy_(other), "copy_"),
            "item": (set_item, "__setitem__"),
            "add": (add, "add_"),
            "out": (lambda: torch.add(other, other, out=bag.weight), "out="),
            "many": (lambda: torch._foreach_add_([bag.weight], 1), "_foreach_add_"),
            "in place": (lambda: torch.nn.functional.relu(bag.weight, inplace=True), "inplace"),
            "gradient": (set_gradient, "setting .grad"),
            "freeze": (freeze, "setting .requires_grad"),
            "frozen": (lambda: bag.weight.requires_grad_(False), "requires_grad_"),
            "hook": (lambda: bag.weight.register_hook(lambda gradient: gradient), "register_hook"),
            "set": (set_all, "setting it"),
            "parameter": (set_parameter, "setting it"),
            "apply": (lambda: bag.apply(lambda one: init.normal_(one.weight)), "normal_"),
        }
        for name, (act, word) in calls.items():
            for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
                with self.subTest(name, context=context), context():
                    self.refused(act, word)
        with self.assertRaises(ValueError):
            to_array()
        self.assertTrue(torch.equal(bag.weight, self.start))

    def test_it_can_be_read(self):
        weight = self.bag.weight
        self.assertEqual((weight.shape, weight.dtype, len(weight)), ((ROWS, DIM), torch.float32, ROWS))
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                numpy.testing.assert_array_equal(self.bag.weight.numpy(), self.start.numpy())
                numpy.testing.assert_array_equal(numpy.asarray(self.bag.weight), self.start.numpy())
                self.assertEqual(self.bag.weight[3].tolist(), self.start[3].tolist())
                mine = self.bag.weight.clone()
                self.assertIs(type(mine), torch.Tensor)
                with torch.no_grad():
                    mine.zero_()
                mine = self.bag.weight.detach().clone()
                self.assertIs(type(mine.mul_(2)), torch.Tensor)
                self.assertTrue(torch.equal(copy.deepcopy(self.bag.weight), self.start))
                self.assertIs(type(copy.deepcopy(self.bag.weight)), torch.Tensor)
                file = io.BytesIO()
                torch.save(self.bag.weight, file)
                file.seek(0)
                loaded = torch.load(file)
                self.assertIs(type(loaded), torch.Tensor)
                self.assertTrue(torch.equal(loaded, self.start))
                theirs = torch.nn.EmbeddingBag(ROWS, DIM)
                with torch.no_grad():
                    theirs.weight.copy_(self.bag.weight)
                self.assertTrue(torch.equal(theirs.weight, self.start))
                self.assertTrue(repr(self.bag.weight).startswith("Weight(["))
                self.bag.table.write(torch.arange(ROWS), self.bag.weight)
        self.assertIs(type(self.bag.weight.mean(0)), torch.Tensor)
        state = self.bag.state_dict()["weight"]
        self.assertIs(type(state), torch.Tensor)
        self.assertFalse(state.requires_grad)
        self.bag.load_state_dict({"weight": self.bag.weight})
        self.assertTrue(torch.equal(self.bag.weight, self.start))

    def test_a_loss_of_it_raises(self):
        bag, ids = self.bag, torch.tensor([[1, 2]])
        hidden = torch.randn(3, DIM, requires_grad=True)
        for loss in (
            lambda: bag(ids).sum() + 1e-4 * bag.weight.pow(2).sum(),
            lambda: 1e-4 * bag.weight.pow(2).sum() + bag(ids).sum(),  # the other order
            lambda: bag.weight.clone()[1].norm(),
            lambda: torch.nn.functional.linear(hidden, bag.weight).sum(),
            lambda: torch.nn.functional.embedding(ids, bag.weight).sum(),
        ):
            with self.assertRaisesRegex(NotImplementedError, "table items.*weight_decay.*detach"):
                loss().backward()
        self.assertEqual(bag.table.counts().steps, 0)
        with self.assertRaisesRegex(ValueError, "leaf"):
            torch.optim.SGD([bag.weight], lr=1)
        # What asks for no gradient of it is right as it is.
        hidden.grad = None
        torch.nn.functional.linear(hidden, bag.weight.detach()).sum().backward()
        bag.weight.norm().item()
        with torch.no_grad():
            self.assertFalse(bag.weight.requires_grad)
        bag.requires_grad_(False)
        torch.nn.functional.linear(hidden, bag.weight).sum().backward()
        torch.testing.assert_close(hidden.grad, 2 * self.start.sum(0).expand(3, DIM))
        self.assertTrue(torch.equal(bag.weight, self.start))


if __name__ == "__main__":
    unittest.main()
