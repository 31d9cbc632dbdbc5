# SPDX-License-Identifier: Apache-2.0
"""Weights whose gradients are dense (sparse=False), by rows where that changes no bit.

A look-up gives such a weight a RowGradient: it behaves as the dense tensor that torch makes, and has the rows that
were looked up. Plain SGD leaves all other rows as they are, so a step of it by rows has the same result; with the
first such step the weight becomes rows. Whatever else is done with the gradient (momentum, weight decay, Adam, a
norm) needs all of it: such weights stay in pages, and have torch's own gradients from the next look-up on.
"""

import functools
import inspect
import math

import torch
from torch.nn import functional

from .library import say
from .rows import distinct_ids, may_copy
from .tensor import RowTensor, handlers

_DisableOverrides = getattr(torch._C, "DisableTorchFunctionSubclass", torch._C.DisableTorchFunction)
_INTEGERS = (torch.int64, torch.int32)


class DenseGradRowTensor(RowTensor):
    """A RowTensor whose look-ups by nn.functional's functions have RowGradients."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _SIGNATURES:
            found = _look_up(func, _SIGNATURES[func].bind(*args, **kwargs).arguments)
            if found is not NotImplemented:
                return found
        with _DisableOverrides():
            return func(*args, **kwargs)


_SIGNATURES = {
    function: inspect.signature(function)
    for function in (functional.embedding, functional.embedding_bag)
}


def _look_up(func, given):
    """A look-up that may train by rows; `given`: arguments by name."""
    weight, ids, padding = given["weight"], given["input"], given.get("padding_idx")
    samples = given.get("per_sample_weights")
    if (
        not isinstance(weight, DenseGradRowTensor)
        or not (torch.is_grad_enabled() and weight.requires_grad and weight.is_whole)
        or weight.rows.plain_gradients
        or given.get("sparse")
        or given.get("mode") == "max"
        or type(ids) is not torch.Tensor
        or ids.dtype not in _INTEGERS
        or (samples is not None and samples.requires_grad)
        or not (padding is None or -weight.rows.count <= padding < weight.rows.count)
    ):
        return NotImplemented
    if given.get("max_norm") is not None:
        with torch.no_grad():
            torch.embedding_renorm_(
                weight.detach(), ids.contiguous(), given["max_norm"], given.get("norm_type", 2.0)
            )
    return _LookUp.apply(weight, ids, func, given)


@functools.cache
def _keeps_weight():
    """Whether this torch refuses the gradient of a look-up in a weight that has changed since: 1.13 does, 2 does not."""
    with torch.enable_grad():
        weight = torch.zeros(1, 1, requires_grad=True)
        total = functional.embedding(torch.zeros(1, dtype=torch.int64), weight).sum()
    with torch.no_grad():
        weight.add_(1)
    try:
        total.backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return False


class _LookUp(torch.autograd.Function):
    """Torch's own look-up in the rows that are wanted, side by side under new ids, and its own gradient of these."""

    @staticmethod
    def forward(ctx, weight, ids, func, given):
        flat = ids.reshape(-1).to(torch.int64).contiguous()
        weight.rows.note_look_up(flat)
        distinct, numbers = distinct_ids(flat)
        rows = weight.rows.gather(distinct)
        given = {**given, "input": numbers.view(ids.shape).to(ids.dtype), "max_norm": None}
        if given.get("padding_idx") is not None:
            # Torch works in another way where a row is left out: a row more stands for one that does not occur.
            padding = given["padding_idx"] % weight.rows.count
            given["padding_idx"] = at = int(torch.searchsorted(distinct, padding))
            if at == len(distinct) or distinct[at] != padding:
                given["padding_idx"] = len(distinct)
                rows = torch.cat([rows, rows.new_zeros(1, weight.rows.dim)])
        given["weight"] = rows.requires_grad_()
        if func is functional.embedding and _keeps_weight():
            ctx.save_for_backward(weight)  # so that backward() is refused if it has changed
        with torch.enable_grad():
            found = func(**given)
        ctx.inner = weight.rows, distinct, rows, found
        return found.detach()

    @staticmethod
    def backward(ctx, gradient):
        _ = ctx.saved_tensors
        owner, distinct, rows, found = ctx.inner
        again = torch.is_grad_enabled()  # the gradient is to have a gradient
        (values,) = torch.autograd.grad(
            found, rows, gradient, retain_graph=True, create_graph=again
        )
        values = values[: len(distinct)]
        if again:
            dense = torch.zeros(owner.count, owner.dim, dtype=values.dtype)
            return dense.index_copy(0, distinct, values), None, None, None
        return RowGradient(_Numbers(owner, distinct, values)), None, None, None


class _Numbers:
    """What a RowGradient and those that share its memory consist of: some rows of zeros' place, or all."""

    def __init__(self, owner, ids, values):
        self.owner, self.ids, self.values, self.all = owner, ids, values, None

    def all_of(self, why, lasting=False):
        """All of it, as a dense tensor, for an operation called `why`. Of a weight that is rows it is a copy, unless it
        is to be `lasting`; else it is that tensor from now on. Errors: as may_copy()."""
        if self.all is not None:
            return self.all
        owner = self.owner
        in_rows = owner.in_table
        if in_rows:
            may_copy(why, owner.count, owner.dim, owner.size)
        else:
            owner.plain_gradients = True
            say(
                f"a weight of {owner.count} x {owner.dim} stays in pages: {why} takes all of its dense gradient; "
                "with sparse=True it would be rows"
            )
        dense = torch.zeros(owner.count, owner.dim, dtype=self.values.dtype)
        dense.index_copy_(0, self.ids, self.values)
        if lasting or not in_rows:
            self.all, self.ids, self.values = dense, None, None
        return dense

    def forget(self):
        self.ids, self.values = self.ids[:0], self.values[:0]

    def merged(self, func, other, **kwargs):
        """(ids, values) of func of both, where no number stays zero in one and is changed by the other."""
        ids = torch.cat([self.ids, other.ids])
        distinct, numbers = distinct_ids(ids)
        sides = torch.zeros(2, len(distinct), self.owner.dim, dtype=self.values.dtype)
        sides[0].index_copy_(0, numbers[: len(self.ids)], self.values)
        sides[1].index_copy_(0, numbers[len(self.ids) :], other.values)
        return distinct, func(sides[0], sides[1], **kwargs)


class RowGradient(torch.Tensor):
    """Behaves as a dense gradient on the CPU."""

    @staticmethod
    def __new__(cls, numbers):
        owner = numbers.owner
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, (owner.count, owner.dim), dtype=owner.dtype
        )
        tensor.numbers = numbers
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        by_rows = _BY_ROWS.get(str(func))
        result = by_rows(func, *args, **kwargs) if by_rows else NotImplemented
        return _on_all(func, args, kwargs) if result is NotImplemented else result

    @property
    def is_rows(self):
        return self.numbers.all is None

    def _dense(self, why):
        return self.numbers.all_of(why, lasting=True)

    def numpy(self, *args, **kwargs):
        return self._dense("numpy()").numpy(*args, **kwargs)

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def data_ptr(self):
        return self._dense("data_ptr()").data_ptr()

    def share_memory_(self):
        self._dense("share_memory_()").share_memory_()
        return self

    def is_shared(self):
        return not self.is_rows and self.numbers.all.is_shared()

    def tolist(self):
        return self._dense("tolist()").tolist()

    def __repr__(self, **kwargs):
        return torch.Tensor.__repr__(self._dense("repr()"), **kwargs)

    def __reduce_ex__(self, protocol):
        return self._dense("pickling").__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), self.numbers.all_of("deepcopy()").clone())


_BY_ROWS, _handles = handlers()


def _both_rows(one, other, alpha=1):
    """Whether zeros of both stay zeros in one + alpha * other."""
    return (
        all(isinstance(tensor, RowGradient) and tensor.is_rows for tensor in (one, other))
        and one.shape == other.shape
        and one.dtype == other.dtype
        and math.isfinite(alpha)
    )


@_handles("detach.default", "alias.default")
def _same(func, tensor):
    return RowGradient(tensor.numbers)


@_handles("zero_.default")
def _zero(func, tensor):
    if not tensor.is_rows:
        return NotImplemented
    tensor.numbers.forget()
    return tensor


@_handles("add_.Tensor")
def _accumulate(func, tensor, other, **kwargs):
    if not _both_rows(tensor, other, **kwargs):
        return NotImplemented
    numbers = tensor.numbers
    numbers.ids, numbers.values = numbers.merged(func, other.numbers, **kwargs)
    return tensor


@_handles("add.Tensor")
def _sum(func, tensor, other, **kwargs):
    if not _both_rows(tensor, other, **kwargs):
        return NotImplemented
    return RowGradient(
        _Numbers(tensor.numbers.owner, *tensor.numbers.merged(func, other.numbers, **kwargs))
    )


@_handles("mul_.Tensor", "div_.Tensor")
def _scale(func, tensor, factor):
    one = not isinstance(factor, torch.Tensor) or (
        factor.dim() == 0 and not isinstance(factor, RowGradient)
    )
    # Zeros must stay +0.0.
    if not one or not tensor.is_rows or not 0 < float(factor) < math.inf:
        return NotImplemented
    func(tensor.numbers.values, factor)
    return tensor


@_handles("new_empty_strided.default")
def _new(func, tensor, size, stride, **kwargs):
    """Torch makes one to copy a gradient into that somebody else has, too."""
    if not tensor.is_rows or tuple(size) != tensor.shape or tuple(stride) != tensor.stride():
        return func(torch.empty(0, dtype=tensor.dtype), size, stride, **kwargs)
    values = tensor.numbers.values
    return RowGradient(_Numbers(tensor.numbers.owner, tensor.numbers.ids[:0], values[:0]))


@_handles("copy_.default")
def _copy(func, tensor, source, *args):
    if not _both_rows(tensor, source):
        return NotImplemented
    tensor.numbers.ids, tensor.numbers.values = source.numbers.ids, source.numbers.values.clone()
    return tensor


def _changed(value, change):
    if isinstance(value, RowGradient):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_changed(one, change) for one in value)
    return value


def _on_all(func, args, kwargs):
    """Everything else: on all of the gradient, which it stays if it may be written to later on."""
    schema, why = func._schema, str(func)
    lasting = set()
    for at, argument in enumerate(schema.arguments):
        if argument.alias_info is None:
            continue
        value = args[at] if at < len(args) else kwargs.get(argument.name)
        _changed(value, lambda tensor: lasting.add(id(tensor.numbers)))
    parts = {}

    def dense(tensor):
        numbers = tensor.numbers
        part = numbers.all_of(why, id(numbers) in lasting)
        parts[id(part)] = tensor, part
        return part

    result = func(
        *(_changed(one, dense) for one in args),
        **{name: _changed(one, dense) for name, one in kwargs.items()},
    )
    return parts[id(result)][0] if id(result) in parts else result


# ---- The step ----------------------------------------------------------------------------------

_exact = {}


def _alone(func, dtype):
    """Whether this torch adds the same to a row wherever it lies, as all that are known do."""
    if (func, dtype) not in _exact:
        generator = torch.Generator().manual_seed(1)
        here, more = (torch.randn(83, generator=generator).to(dtype) for _ in range(2))
        whole = func(here.clone(), more, alpha=-0.1)
        pieces = here.clone()
        for piece in (slice(0, 1), slice(1, 38), slice(38, 83)):
            pieces[piece] = func(pieces[piece].clone(), more[piece], alpha=-0.1)
        _exact[func, dtype] = torch.equal(whole, pieces)
    return _exact[func, dtype]


def descend(func, weight, gradient, alpha=1):
    """weight.add_(gradient, alpha=alpha) by rows: NotImplemented unless no other row can change."""
    # x + -0.0 is x, whatever x is; x + 0.0 is not.
    if (
        not gradient.is_rows
        or not weight.is_whole
        or weight.shape != gradient.shape
        or weight.dtype != gradient.dtype
        or not -math.inf < alpha < 0
        or not _alone(func, weight.dtype)
    ):
        return NotImplemented
    rows, numbers = weight.rows, gradient.numbers
    rows.waits = False
    rows.become_table()
    if len(numbers.ids):
        found = rows.gather(numbers.ids)
        func(found, numbers.values, alpha=alpha)
        rows.scatter(numbers.ids, found)
    return weight
