# SPDX-License-Identifier: Apache-2.0
"""Which of ATen's operations meet a weight in rows in PyTorch's own tests of Embedding and EmbeddingBag, and how each is
done. To be run under `tidepool run --rows all:1`; prints the table of docs/torch-operations.md.

The tests are those that PyTorch is installed with: samples of the functional forms and of the modules, forward and
backward, compared with a dense weight; then what its tests of all modules do to one (copies, pickles, conversions,
state dictionaries, moves), every function of torch.nn.init, and every optimizer."""

import copy
import io
import pickle
import sys
import types
import unittest
import warnings

# A helper of PyTorch's for tests that change their own files; Debian has it not, and nothing here uses it.
sys.modules.setdefault("expecttest", types.ModuleType("expecttest"))
sys.modules["expecttest"].ACCEPT = False
sys.modules["expecttest"].TestCase = unittest.TestCase

import torch  # noqa: E402
from tidepool_rows import operations  # noqa: E402
from torch.testing._internal import common_nn  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_modules import module_db  # noqa: E402

met = {}  # operation: {how}
refused = {}  # operation: why


def record(func, args, kwargs):
    """operations.perform(), which notes how it went."""
    name = str(func).removeprefix("aten.")
    handled = operations._BY_ROWS.get(str(func))
    try:
        result = handled(func, *args, **kwargs) if handled else NotImplemented
        if result is not NotImplemented:
            met.setdefault(name, set()).add("rows")
            return result
        result = operations._on_copy(func, args, kwargs)
        met.setdefault(name, set()).add("view" if operations._is_view(func._schema) else "copy")
        return result
    except Exception as error:
        refused.setdefault(name, str(error).splitlines()[0])
        raise


def dense(tensor):
    return tensor.to_dense() if tensor.is_sparse else tensor


def same(mine, plain):
    if isinstance(mine, torch.Tensor):
        assert torch.equal(dense(mine.detach()).double(), dense(plain.detach()).double()), (mine, plain)
    else:
        assert all(same(*pair) is None for pair in zip(mine, plain))


def layer(kind, weight, **options):
    """Of rows, unless the weight is of a kind that stays dense."""
    return kind(*weight.shape, _weight=torch.tensor(weight.detach().tolist(), dtype=weight.dtype), **options)


def both(kind, weight, ids, forward, options, call=()):
    """The layer in rows and a dense one: results and gradients are the same."""
    rows = layer(kind, weight, **options)
    plain = torch.nn.Parameter(weight.detach().clone())
    given = {"sparse": options.get("sparse", False), **{k: v for k, v in options.items() if k != "sparse"}}
    try:
        expected = forward(plain, ids, given)
    except Exception:
        return  # a sample of an error
    found = rows(ids, *call)
    same(found, expected)
    if not expected.requires_grad:
        return
    expected.sum().backward()
    found.sum().backward()
    same(rows.weight.grad, plain.grad)


def functional():
    """The samples of torch.nn.functional.embedding and embedding_bag."""
    functions = torch.nn.functional
    for info in (one for one in op_db if one.name in ("nn.functional.embedding", "nn.functional.embedding_bag")):
        bags = info.name.endswith("bag")
        for sample in info.sample_inputs("cpu", torch.float32, requires_grad=True):
            first, second, options = sample.input, sample.args[0], dict(sample.kwargs)
            weight, ids = (first, second) if first.dtype.is_floating_point else (second, first)
            offsets, weights = options.pop("offsets", None), options.pop("per_sample_weights", None)
            for sparse in {options.pop("sparse", False), True}:
                if sparse and options.get("mode") == "max":
                    continue
                layer_options = {**options, "sparse": sparse}
                if bags:
                    both(
                        torch.nn.EmbeddingBag, weight, ids,
                        lambda w, i, o: functions.embedding_bag(i, w, offsets, per_sample_weights=weights, **o),
                        layer_options, (offsets, weights),
                    )  # fmt: skip
                else:
                    both(
                        torch.nn.Embedding, weight, ids, lambda w, i, o: functions.embedding(i, w, **o), layer_options
                    )


def modules():
    """The samples of the modules themselves."""
    for info in (one for one in module_db if one.name == "nn.Embedding"):
        for sample in info.module_inputs_func(info, "cpu", torch.float32, True, training=True):
            made = torch.nn.Embedding(*sample.constructor_input.args, **sample.constructor_input.kwargs)
            made(*sample.forward_input.args, **sample.forward_input.kwargs).sum().backward()
    for test in common_nn.module_tests + common_nn.new_module_tests:
        kind = getattr(torch.nn, test.get("module_name", ""), None)
        if kind not in (torch.nn.Embedding, torch.nn.EmbeddingBag):
            continue
        ids = test["input_fn"]() if "input_fn" in test else torch.randint(4, (2, 3))
        made = kind(*test["constructor_args"])
        made(ids).sum().backward()


def small(kind, **options):
    torch.manual_seed(1)
    return kind(40, 8, sparse=True, **options)


def whole():
    """What tests of all modules do."""
    for kind in (torch.nn.Embedding, torch.nn.EmbeddingBag):
        ids = torch.randint(0, 40, (6, 3))
        for change in (
            copy.deepcopy,
            lambda one: pickle.loads(pickle.dumps(one)),
            lambda one: one.double(),
            lambda one: one.half().float(),
            lambda one: one.bfloat16().float(),
            lambda one: one.to("cpu", torch.float32),
            lambda one: one.cpu(),
            lambda one: one.requires_grad_(False),
            lambda one: one.eval(),
        ):
            plain = torch.nn.functional.embedding(ids, torch.tensor(small(kind).weight.tolist()))
            made = change(small(kind))
            found = made(ids)
            if kind is torch.nn.Embedding:
                assert torch.allclose(found.double(), plain.double(), atol=1e-2)
        made = small(kind)
        file = io.BytesIO()
        torch.save(made.state_dict(), file)
        file.seek(0)
        small(kind).load_state_dict(torch.load(file))
        torch.nn.utils.clip_grad_value_(made.parameters(), 1.0)
        vector = torch.nn.utils.parameters_to_vector(made.parameters())
        torch.nn.utils.vector_to_parameters(vector * 2, made.parameters())
        repr(made.weight), str(made), made.weight.tolist(), made.weight.numel(), made.weight[3], made.weight[3:7]
        made.weight == made.weight.clone()
        torch.equal(made.weight, made.weight)
        made.weight.norm(), made.weight.mean(), made.weight.std(), made.weight.sum(0), made.weight.argmax()
        made.weight.t() @ made.weight
        made.from_pretrained(made.weight)
        made.zero_grad()


def initial_values():
    init = torch.nn.init
    for fill in (
        init.uniform_, init.normal_, init.ones_, init.zeros_, init.xavier_uniform_, init.xavier_normal_,
        init.kaiming_uniform_, init.kaiming_normal_, init.trunc_normal_, init.orthogonal_, init.eye_,
        lambda weight: init.constant_(weight, 3.0), lambda weight: init.sparse_(weight, 0.5),
    ):  # fmt: skip
        fill(small(torch.nn.Embedding).weight)


def optimizers():
    """All of them, sparse gradients or dense; with clipping."""
    for name in sorted(dir(torch.optim)):
        kind = getattr(torch.optim, name)
        if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer) or kind is torch.optim.Optimizer:
            continue
        for sparse in (False, True):
            torch.manual_seed(2)
            made = torch.nn.EmbeddingBag(40, 8, mode="sum", sparse=sparse)
            optimizer = kind(made.parameters(), lr=0.1)

            def closure(made=made, optimizer=optimizer):
                optimizer.zero_grad()
                loss = made(torch.randint(0, 40, (5, 3))).pow(2).sum()
                loss.backward()
                return loss

            try:
                for _ in range(2):
                    closure()
                    if not sparse:
                        torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
                    optimizer.step(closure) if name == "LBFGS" else optimizer.step()
            except RuntimeError as error:
                if not sparse and name != "SparseAdam":  # those refuse the other kind of gradient, with torch too
                    raise error


def table():
    """Markdown."""
    how_texts = {
        frozenset({"rows"}): "by rows",
        frozenset({"view"}): "a view: nothing is moved",
        frozenset({"copy"}): "on a copy",
        frozenset({"rows", "copy"}): "by rows; on a copy for arguments that leave no other way",
    }
    lines = ["| operation of ATen | how |", "|---|---|"]
    for name in sorted(met):
        lines.append(f"| `{name}` | {how_texts[frozenset(met[name])]} |")
    for name in sorted(set(refused) - set(met)):
        lines.append(f"| `{name}` | refused: {refused[name]} |")
    counts = {how: sum(1 for one in met.values() if how in one) for how in ("rows", "view", "copy")}
    only_refused = len(set(refused) - set(met))
    lines.append("")
    lines.append(
        f"{len(met) + only_refused} operations: {counts['rows']} by rows, {counts['view']} as views, {counts['copy']} "
        f"on a copy, {only_refused} refused."
    )
    return "\n".join(lines)


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    operations.perform = record
    for part in (functional, modules, whole, initial_values, optimizers):
        part()
    print(table())


main()
