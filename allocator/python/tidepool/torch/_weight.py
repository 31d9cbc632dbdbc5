# SPDX-License-Identifier: Apache-2.0
"""What `module.weight` gives: a copy of the rows that can be read like any tensor. Whatever would change torch's
parameter (in-place operations, .data, requires_grad, gradients) cannot reach the rows, and raises."""

import re

import torch

from ._recorded import record

# The first also leaves other subclasses and modes alone; PyTorch 1.13 has the second.
_plainly = getattr(torch._C, "DisableTorchFunctionSubclass", None) or torch._C.DisableTorchFunction
_IN_PLACE = re.compile(
    r"__(setitem|delitem|i(add|sub|mul|matmul|truediv|div|floordiv|mod|pow|and|or|xor|[lr]shift))__"
)
# Of gradients, which rows do not have.
_HOOKS = ("register_hook", "register_post_accumulate_grad_hook", "retain_grad")
# What leaves autograd, or makes tensors of the same type.
_READ = ("numpy", "__array__", "__deepcopy__", "__reduce_ex__")


def refused(table, what):
    """What to raise for something that is done to a table's weight."""
    return NotImplementedError(
        f"weight: a copy of the rows of table {table.name}, which {what} does not reach; load_state_dict() of the "
        "module sets them, _weight= and init= say what they begin with, requires_grad_(False) of the module freezes "
        "them, and weight.clone() is a tensor of your own"
    )


def _no_gradient(table):
    """What to raise for a loss that has a table's weight in it."""
    return NotImplementedError(
        f"weight: rows of table {table.name} get gradients from look-ups alone, and this loss was computed from the "
        "weight itself; use the results of the module for it (weight_decay= of the module decays rows), or weight.detach() if "
        "it is to have no gradient"
    )


class _Read(torch.autograd.Function):
    """Rows that say so when a loss wants their gradient."""

    @staticmethod
    def forward(ctx, read, table, anchor):
        ctx.table = table
        record(ctx, [table], _no_gradient)
        return read()

    @staticmethod
    def backward(ctx, _):
        raise _no_gradient(ctx.table)


def _target(args, kwargs):
    if args:
        return args[0]
    return kwargs.get("tensor", kwargs.get("input"))


def _refused_word(func, args, kwargs):
    """What a call would do to rows that are its target, by its name; None if it only reads."""
    out = kwargs.get("out")
    if any(isinstance(one, Weight) for one in (out if isinstance(out, (tuple, list)) else (out,))):
        return "out="
    if not isinstance(_target(args, kwargs), Weight):
        return None
    name = getattr(func, "__name__", "")
    if name in ("__set__", "__delete__"):  # of .data, .requires_grad, ...
        return "setting ." + getattr(getattr(func, "__self__", None), "__name__", "attribute")
    if _IN_PLACE.fullmatch(name) or name in _HOOKS or (name.endswith("_") and not name.endswith("__")):
        return name
    return name + "(inplace=True)" if kwargs.get("inplace") else None


def _memory(tensor):
    """Where a tensor's storage is; None if it has none."""
    try:
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        return storage.data_ptr() or None
    except (NotImplementedError, RuntimeError):
        return None


class Weight(torch.Tensor):
    """The copy. Views of it are of this class as well, results of computations with it are plain tensors."""

    @staticmethod
    def of(table, read, anchor):
        """read: makes the copy. anchor: the module's, which says whether there is a gradient to ask for."""
        wanted = torch.is_grad_enabled() and anchor.requires_grad
        # Tensors of inference mode do not say whether they were changed.
        with torch.inference_mode(False), torch.set_grad_enabled(wanted):
            return _guarded(_Read.apply(read, table, anchor) if wanted else read(), table)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [one for one in _flat((args, kwargs)) if isinstance(one, Weight)]
        what = _refused_word(func, args, kwargs)
        if what is not None:
            raise refused(given[0].table, what)
        name = getattr(func, "__name__", "")
        with _plainly():
            if name in _READ:
                args = tuple(_detached(one) if isinstance(one, Weight) else one for one in args)
            versions = [one._version for one in given]
            result = func(*args, **kwargs)
            if versions != [one._version for one in given]:
                raise refused(given[0].table, name)
            return _read_only(result, given, name)


def _flat(value):
    """All that is in tuples, lists and dicts."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        yield value
        return
    for one in value:
        yield from _flat(one)


def _guarded(tensor, table):
    with _plainly():
        rows = tensor.as_subclass(Weight)
    rows.table = table
    return rows


def _detached(rows):
    return rows.detach().as_subclass(torch.Tensor)


def _read_only(result, given, name):
    """A result that has the memory of rows cannot be written to either."""
    if isinstance(result, torch.Tensor):
        memory = None if isinstance(result, Weight) else _memory(result)
        owner = next((one for one in given if memory is not None and _memory(one) == memory), None)
        return result if owner is None else _guarded(result, owner.table)
    if name in ("numpy", "__array__") and given:
        result.flags.writeable = False
        return result
    if type(result) in (tuple, list):
        return type(result)(_read_only(one, given, name) for one in result)
    return result
