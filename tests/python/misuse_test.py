# SPDX-License-Identifier: Apache-2.0
"""What users of tidepool.torch get wrong: the error says which argument it was and what to do, and no row has changed."""

import unittest

import torch

import tidepool
import tidepool.torch
from places import TIERS, Everywhere

ROWS, DIM = 100, 8


class Misuse(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.places = Everywhere()
        self.addCleanup(self.places.close)
        self.items, self.users = self.bag(name="items"), self.bag(name="users", tier=TIERS["remote"])
        self.before = self.items.weight, self.users.weight
        self.ids = torch.randint(ROWS, (4, 3))
        self.collection = tidepool.torch.EmbeddingBagCollection({"items": self.items, "users": self.users})

    def bag(self, **options):
        return tidepool.torch.EmbeddingBag(ROWS, DIM, **{"space": self.places.space, "mode": "sum", **options})

    def tearDown(self):
        if not self.places.space.closed:
            self.assertTrue(torch.equal(self.items.weight, self.before[0]))
            self.assertTrue(torch.equal(self.users.weight, self.before[1]))
            self.assertEqual(self.items.table.counts().steps, 0)
            self.assertEqual(self.users.table.counts().steps, 0)

    def refused(self, kind, text, act, *arguments, **options):
        with self.subTest(text=text), self.assertRaisesRegex(kind, text):
            act(*arguments, **options)

    def test_keys_may_be_any_names(self):
        names = ["items", "keys", "type", "training", "forward", "a/b", "weight", "0"]
        modules = {name: self.bag(name="the " + name) for name in names}
        named = tidepool.torch.EmbeddingBagCollection(modules)
        self.assertEqual(list(named.bags.keys()), names)
        parts = named.split(named({name: self.ids for name in reversed(names)}))
        for name in names:
            self.assertTrue(torch.equal(parts[name], modules[name](self.ids)))
        state = named.state_dict()
        self.assertEqual(list(state), [f"bags.{name}.weight" for name in names])
        other = tidepool.torch.EmbeddingBagCollection({name: self.bag() for name in names})
        other.load_state_dict(state)
        self.assertTrue(torch.equal(other.bags["items"].weight, modules["items"].weight))
        self.assertEqual(len(list(named.parameters())), len(names))

    def test_collections_of_what_is_none(self):
        make = tidepool.torch.EmbeddingBagCollection
        elsewhere = tidepool.torch.EmbeddingBag(ROWS, DIM)
        for kind, text, bags in (
            (ValueError, "'a.b' cannot be a key", {"a.b": self.items}),
            (ValueError, "'' cannot be a key", {"": self.items}),
            (TypeError, "keys are texts, and 1 is of int", {1: self.items}),
            (TypeError, r"bags\['x'\].* not torch.nn.modules.sparse.EmbeddingBag", {"x": torch.nn.EmbeddingBag(3, 3)}),
            (TypeError, r"bags\[1\].* not builtins.dict", [self.items, {"rows": 3}]),
            (TypeError, "a list or a dict of modules is needed, not one EmbeddingBag", self.items),
            (TypeError, "a list or a dict of modules is needed, not NoneType", None),
            (ValueError, "at least one", {}),
            (ValueError, r"bags\['b'\].*another space.*same space=", {"a": self.items, "b": elsewhere}),
        ):
            self.refused(kind, text, make, bags)

    def test_batches_of_collections(self):
        ids, named = self.ids, self.collection
        listed = tidepool.torch.EmbeddingBagCollection([self.items, self.users])
        tables = "tables are 'items', 'users'"
        for kind, text, collection, batch in (
            (ValueError, f"no entry for 'users'; {tables}", named, {"items": ids}),
            (ValueError, f"no entry for 'users'; {tables}", named, {"items": ids, "user": ids}),
            (ValueError, f"no table called 'more'; {tables}", named, {"items": ids, "users": ids, "more": ids}),
            (ValueError, f"1 entries; {tables}", named, [ids]),
            (TypeError, f"not one Tensor; {tables}", named, ids),
            (TypeError, "given as a list; there are 2 tables", listed, {"items": ids, "users": ids}),
            (TypeError, "not one Tensor; there are 2 tables", listed, torch.stack([ids, ids])),
            (TypeError, "not one NoneType", listed, None),
            (TypeError, r"batch\[1\].*not NoneType", listed, [ids, None]),
            (TypeError, r"batch\[1\].*not int", listed, [ids, 3]),
            (TypeError, r"batch\[1\].*not 0 parts", listed, [ids, ()]),
            (TypeError, r"batch\[1\].*not 4 parts", listed, [ids, (ids, None, None, 1)]),
            (TypeError, r"batch\['users'\]: input:.*torch.float32", named, {"items": ids, "users": ids.float()}),
            (ValueError, r"batch\['users'\]: offsets: a 1-D", named, {"items": ids, "users": ids.reshape(-1)}),
            (ValueError, "'items' has 4, 'users' has 2", named, {"items": ids, "users": ids[:2]}),
            (tidepool.BadId, "table users: ids", named, {"items": ids, "users": ids + ROWS}),
        ):
            self.refused(kind, text, collection, batch)
            self.refused(kind, text, collection.prefetch, batch)
        self.refused(ValueError, "16 columns, is needed, not \\(4, 7\\)", named.split, torch.zeros(4, 7))

    def test_a_refused_batch_forgets_no_announcement(self):
        batch = {"items": self.ids, "users": self.ids.clone()}
        self.collection.prefetch(batch)
        with self.assertRaises(TypeError):
            self.collection({**batch, "users": None})
        self.assertEqual([len(module._ahead) for module in (self.items, self.users)], [1, 1])
        with torch.no_grad():
            self.collection(batch)
        self.assertEqual([len(module._ahead) for module in (self.items, self.users)], [0, 0])

    def test_inputs(self):
        ids, flat, items = self.ids, self.ids.reshape(-1), self.items
        last = self.bag(include_last_offset=True)
        none = torch.empty(0, dtype=torch.int64)
        for kind, text, module, arguments in (
            (TypeError, "input: .*int64 or int32.*torch.float32", items, (ids.float(),)),
            (TypeError, "input: .*torch.bool", items, (ids > 3,)),
            (TypeError, "input: .*CPU memory.*meta.*cpu()", items, (ids.to("meta"),)),
            (TypeError, "input: a dense tensor.*sparse", items, (ids.to_sparse(),)),
            (TypeError, "input: .*not list", items, ([1, 2],)),
            (ValueError, "input: one or two dimensions", items, (torch.tensor(3),)),
            (ValueError, "offsets: a 1-D input needs them", items, (flat,)),
            (ValueError, "offsets: a 2-D input", items, (ids, torch.tensor([0]))),
            (ValueError, r"offsets\[0\] is 1; the first bag begins at 0", items, (flat, torch.tensor([1, 3]))),
            (ValueError, "offsets.*3, less than the one before it", items, (flat, torch.tensor([0, 5, 3]))),
            (ValueError, "offsets: the last one is 50, but there are 12 ids", items, (flat, torch.tensor([0, 50]))),
            (ValueError, "offsets: none, but 12 ids", items, (flat, none)),
            (ValueError, "include_last_offset", last, (flat, none)),
            (ValueError, "last one is 3.*include_last_offset", last, (flat, torch.tensor([0, 3]))),
            (IndexError, r"table items: ids\[0\] is 1[0-9][0-9], not from 0 to 99", items, (ids + ROWS,)),
            (IndexError, r"table items: ids\[0\] is -", items, (ids - ROWS,)),
        ):
            self.refused(kind, text, module, *arguments)
        self.assertEqual(items(none, none).shape, (0, DIM))

    def test_weights_of_samples(self):
        mean = self.bag(mode="mean")
        for kind, text, module, weights in (
            (NotImplementedError, 'mode="sum" alone.*mode="mean"', mean, torch.ones(4, 3)),
            (ValueError, r"the shape \(4, 3\)", self.items, torch.ones(3, 4)),
            (TypeError, "float32 is needed, not of torch.float64", self.items, torch.ones(4, 3).double()),
            (TypeError, "CPU memory", self.items, torch.ones(4, 3, device="meta")),
            (NotImplementedError, "detach", self.items, torch.ones(4, 3, requires_grad=True)),
        ):
            self.refused(kind, text, module, self.ids, None, weights)

    def test_closed_tables(self):
        gone = self.bag(name="gone")
        out = gone(self.ids)
        gone.table.close()
        together = tidepool.torch.EmbeddingBagCollection([self.items, gone])
        for act, arguments in (
            (gone, (self.ids,)),
            (gone.prefetch, (self.ids,)),
            (gone.state_dict, ()),
            (gone.set_lr, (0.1,)),
            (together, ([self.ids, self.ids],)),
            (out.sum().backward, ()),
        ):
            self.refused(tidepool.Unusable, "table gone is closed", act, *arguments)
        self.assertIn("EmbeddingBag(100, 8", repr(gone))

    def test_options(self):
        for kind, text, options in (
            (TypeError, "space: a tidepool.Space is needed, not str", {"space": "cxl:1M"}),
            (TypeError, "foo: no option of tables; there are ids, optimizer, lr", {"foo": 3}),
            (ValueError, "optimizer: 'adamw' is none of sgd", {"optimizer": "adamw"}),
            (ValueError, "dtype: 'float64' is none of float32", {"dtype": torch.float64}),
            (NotImplementedError, "device: tables are in CPU memory", {"device": "cuda"}),
            (LookupError, "no far tier 4; 2 are given", {"tier": 4}),
            (ValueError, "lr: -1.0 is not at least 0", {"lr": -1}),
            (ValueError, "weight: the shape \\(100, 8\\).*\\(3, 3\\)", {"_weight": torch.ones(3, 3)}),
            (TypeError, "weight: a tensor is needed, not str", {"_weight": "abc"}),
        ):
            self.refused(kind, text, self.bag, **options)
        self.refused(ValueError, "lr: -1.0", self.items.set_lr, -1)
        self.assertEqual(self.bag(dtype=torch.bfloat16, device="cpu").table.dtype, "bfloat16")


if __name__ == "__main__":
    unittest.main()
