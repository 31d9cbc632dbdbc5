# SPDX-License-Identifier: Apache-2.0
"""What torch's operations do to a RowTensor.

Those of training gather the rows that they need side by side, have torch's own operation work on
them under new ids, and write back the rows that it changed: the same arithmetic in the same order.
Every other operation is done on a dense copy, and what it changed is written back.
"""

import warnings

import torch

from .dense_gradients import RowGradient, descend
from .library import say
from .rows import Rows, distinct_ids
from .tensor import RowTensor, View, handlers

# Torch 2 says it of the first sparse tensor that Python makes; the program has made none.
warnings.filterwarnings("ignore", message="Sparse invariant checks", module=__name__)

_BY_ROWS, _handles = handlers()
_known = {}  # function of torch: ours, or None
_SLICE, _SELECT = "aten.slice.Tensor", "aten.select.int"


def perform(func, args, kwargs):
    """Does `func`, one of whose arguments is a RowTensor."""
    if func not in _known:
        _known[func] = _BY_ROWS.get(str(func))
    by_rows = _known[func]
    result = by_rows(func, *args, **kwargs) if by_rows else NotImplemented
    return _on_copy(func, args, kwargs) if result is NotImplemented else result


def _whole(tensor):
    return isinstance(tensor, RowTensor) and tensor.is_whole and tensor.rows.in_table


def _plain(*tensors):
    return not any(isinstance(tensor, RowTensor) for tensor in tensors)


def _ids(tensor):
    """Ids as a table takes them."""
    return tensor.reshape(-1).to(torch.int64).contiguous()


# ---- Looking up --------------------------------------------------------------------------------


@_handles("embedding.default")
def _embedding(func, weight, indices, *args, **kwargs):
    if not _whole(weight) or not _plain(indices):
        return NotImplemented
    found = weight.rows.look_up(_ids(indices))
    return found.view(*indices.shape, weight.rows.dim)


@_handles("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(
    func,
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    if not _whole(weight) or not _plain(indices, offsets, per_sample_weights) or mode == 2:
        return NotImplemented
    count = indices.numel()
    numbers = torch.arange(count, dtype=indices.dtype)
    found = weight.rows.look_up(_ids(indices))
    if padding_idx >= 0:
        # One row more stands for the one that is left out, whether it occurs or not.
        numbers = torch.where(indices == padding_idx, count, numbers)
        found = torch.cat([found, found.new_zeros(1, weight.rows.dim)])
        padding_idx = count
    return func(
        found,
        numbers,
        offsets,
        scale_grad_by_freq,
        mode,
        sparse,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )


@_handles("embedding_renorm_.default")
def _embedding_renorm(func, weight, indices, max_norm, norm_type):
    if not _whole(weight) or not _plain(indices):
        return NotImplemented
    distinct, numbers = distinct_ids(_ids(indices))
    found = weight.rows.gather(distinct)
    func(found, numbers, max_norm, norm_type)
    weight.rows.scatter(distinct, found)
    return weight


@_handles("sparse_mask.default")
def _sparse_mask(func, tensor, mask):
    if not _whole(tensor) or not _of_rows(mask):
        return NotImplemented
    if mask._nnz() == 0:  # torch makes values of another shape of none
        return func(torch.zeros(1).expand(tensor.shape), mask)
    distinct, small = _renumbered(mask)
    masked = func(tensor.rows.gather(distinct), small)
    return _coalesced_as(
        masked, torch.sparse_coo_tensor(mask._indices().clone(), masked._values(), mask.shape)
    )


# ---- Steps -------------------------------------------------------------------------------------


def _of_rows(tensor):
    return (
        isinstance(tensor, torch.Tensor)
        and _plain(tensor)
        and tensor.layout == torch.sparse_coo
        and tensor.sparse_dim() == 1
    )


def _coalesced_as(other, tensor):
    return tensor._coalesced_(True) if other.is_coalesced() else tensor


def _renumbered(sparse):
    """(the rows that it has, the same tensor over these rows alone)."""
    distinct, numbers = distinct_ids(sparse._indices()[0])
    values = sparse._values()
    small = torch.sparse_coo_tensor(numbers[None], values, (len(distinct), *values.shape[1:]))
    return distinct, _coalesced_as(sparse, small)


@_handles("add_.Tensor", "sub_.Tensor")
def _add(func, tensor, other, **kwargs):
    if isinstance(tensor, RowTensor) and isinstance(other, RowGradient):
        return descend(func, tensor, other, **kwargs)
    if not _whole(tensor) or not _of_rows(other) or other.shape != tensor.shape:
        return NotImplemented
    if other._nnz() == 0:
        return tensor
    distinct, small = _renumbered(other)
    found = tensor.rows.gather(distinct)
    func(found, small, **kwargs)
    tensor.rows.scatter(distinct, found)
    return tensor


# ---- Making and filling ------------------------------------------------------------------------


def _overwritable(tensor):
    """Whether a tensor that is going to be overwritten is rows side by side."""
    if not isinstance(tensor, RowTensor) or tensor.view_of_rows.rest:
        return False
    return tensor.rows.become_table(keep=not tensor.is_whole)


def _refill(tensor, fill):
    view = tensor.view_of_rows
    tensor.rows.refill(view.first, view.count, fill)
    return tensor


@_handles("fill_.Scalar", "zero_.default")
def _fill(func, tensor, *args):
    if not _overwritable(tensor):
        return NotImplemented
    return _refill(tensor, lambda piece: func(piece, *args))


@_handles("uniform_.default", "normal_.default")
def _random(func, tensor, *args, **kwargs):
    func(torch.empty(0, dtype=tensor.dtype), *args, **kwargs)  # arguments that are wrong: before anything is lost
    if not _in_pieces(func, tensor.dtype) or not _overwritable(tensor):
        return NotImplemented
    return _refill(tensor, lambda piece: func(piece, *args, **kwargs))


_exact = {}


def _in_pieces(func, dtype):
    """Whether this torch draws the same numbers piece by piece, as all that are known do."""
    if (func, dtype) not in _exact:
        whole, pieces = torch.empty(2, 16 * 5 + 3, dtype=dtype)
        one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
        func(whole, generator=one)
        for piece in (pieces[:32], pieces[32:48], pieces[48:]):
            func(piece, generator=other)
        _exact[func, dtype] = torch.equal(whole, pieces) and torch.equal(
            one.get_state(), other.get_state()
        )
    return _exact[func, dtype]


@_handles("copy_.default")
def _copy(func, tensor, source, *args):
    if not isinstance(tensor, RowTensor):
        if not _whole(source) or tensor.shape != source.shape:
            return NotImplemented
        for first, count in source.rows.pieces(0, source.rows.count):
            func(tensor[first : first + count], source.rows.read(first, count))
        return tensor
    if isinstance(source, RowTensor):
        if not _whole(source) or not _whole(tensor):
            return NotImplemented
        if source.rows is not tensor.rows:
            for first, count in source.rows.pieces(0, source.rows.count):
                tensor.rows.write(first, source.rows.read(first, count))
        return tensor
    if source.layout != torch.strided:
        return NotImplemented
    view, wide = tensor.view_of_rows, source.expand(tensor.shape)
    if not _overwritable(tensor):
        return NotImplemented
    for first, count in tensor.rows.pieces(view.first, view.count):
        piece = torch.empty((count, tensor.rows.dim), dtype=tensor.dtype)
        func(piece, wide[first - view.first : first - view.first + count])
        tensor.rows.write(first, piece)
    return tensor


@_handles("full_like.default", "zeros_like.default", "ones_like.default", "empty_like.default")
def _like(func, tensor, *args, dtype=None, layout=None, device=None, **kwargs):
    constant = args[0] if args else kwargs.get("fill_value", 1 if "ones" in str(func) else 0)
    device = torch.device("cpu") if device is None else torch.device(device)
    as_it_is = dtype in (None, tensor.dtype) and layout in (None, tensor.layout)
    if not _whole(tensor) or not as_it_is or device.type != "cpu":
        stand_in = torch.empty((), dtype=tensor.dtype).expand(tensor.shape)
        kwargs.pop("memory_format", None)
        return func(stand_in, *args, dtype=dtype, layout=layout, device=device, **kwargs)
    try:
        return RowTensor(Rows(*tensor.shape, constant, dtype=tensor.dtype))
    except RuntimeError as error:
        say(f"{func} of {tuple(tensor.shape)} stays in pages: {error}")
        return torch.full(tensor.shape, constant, dtype=tensor.dtype)


@_handles(
    "new_empty.default",
    "new_zeros.default",
    "new_ones.default",
    "new_full.default",
    "new_empty_strided.default",
)
def _new(func, tensor, *args, **kwargs):
    return func(torch.empty(0, dtype=tensor.dtype), *args, **kwargs)


@_handles("detach.default", "alias.default")
def _same(func, tensor):
    return type(tensor)(tensor.rows, tensor.view_of_rows)


@_handles("clone.default")
def _clone(func, tensor, memory_format=None):
    if not _whole(tensor):
        return NotImplemented
    try:
        return RowTensor(tensor.rows.copy())
    except RuntimeError as error:
        say(f"a clone stays in pages: {error}")
        return NotImplemented


# ---- Everything else ---------------------------------------------------------------------------


def _each(value, change):
    """Changes every RowTensor in what is given to a function or comes from it."""
    if isinstance(value, RowTensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        changed = [_each(one, change) for one in value]
        return type(value)(changed) if type(value) in (list, tuple) else type(value)(*changed)
    if isinstance(value, dict):
        return {key: _each(one, change) for key, one in value.items()}
    return value


def _written(schema, args, kwargs):
    """The RowTensors that it changes."""
    found = []
    for at, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[at] if at < len(args) else kwargs.get(argument.name)
        _each(value, found.append)
    return found


def _is_view(schema):
    """Whether it shows an argument in another way; one that writes to an argument returns it, too."""
    aliases = [result.alias_info for result in schema.returns if result.alias_info is not None]
    return any(not alias.is_write for alias in aliases)


def _on_copy(func, args, kwargs):
    if _is_view(func._schema):
        return _view(func, args, kwargs)
    written = _written(func._schema, args, kwargs)
    copies = {}  # of rows: tensors that share memory still do
    parts = {}

    def dense(tensor):
        view = tensor.view_of_rows
        if not tensor.rows.in_table:
            part = tensor.dense(str(func))[1]
        else:
            key = (id(tensor.rows), view.first, view.count)
            if key not in copies:
                copies[key] = tensor.rows.dense(view.first, view.count, str(func))
            part = View.follow(view.rest, copies[key])
        parts[id(part)] = (tensor, part)
        return part

    result = func(*_each(args, dense), **_each(kwargs, dense))
    for tensor in written:
        view = tensor.view_of_rows
        base = copies.get((id(tensor.rows), view.first, view.count))
        for first, count in tensor.rows.pieces(view.first, view.count) if base is not None else ():
            tensor.rows.write(first, base[first - view.first : first - view.first + count])
    return _back(result, parts)


def _back(result, parts):
    """A result that is one of the arguments is that argument."""
    if isinstance(result, (list, tuple)):
        return type(result)(_back(one, parts) for one in result)
    return parts[id(result)][0] if id(result) in parts else result


def _view(func, args, kwargs):
    """A part of the rows, or a way to see them, that reads and writes them when it is used."""
    tensor, args = args[0], args[1:]
    if not isinstance(tensor, RowTensor):
        return NotImplemented
    view = tensor.view_of_rows
    results = func(View.follow(view.steps, tensor.rows.outline()), *args, **kwargs)
    if not isinstance(results, (list, tuple)):
        return _seen(tensor, func, args, kwargs, None)
    return type(results)(
        _seen(tensor, func, args, kwargs, which) for which in range(len(results))
    )


def _seen(tensor, func, args, kwargs, which):
    view, step = tensor.view_of_rows, (func, args, kwargs, which)
    steps = (*view.steps, step)
    first, count, rest = view.first, view.count, (*view.rest, step)
    name = str(func)
    if name == _SLICE and not view.rest and (not args or args[0] == 0):
        start, end, stride = slice(*_slice(args)).indices(count)
        if stride == 1:
            first, count, rest = first + start, max(end - start, 0), ()
    elif name == _SELECT and not view.rest and args[0] == 0:
        first, count = first + args[1] % count, 1
        rest = ((func, (0, 0), {}, None),)
    elif name.startswith("aten.as_strided"):
        first, count, rest = 0, tensor.rows.count, steps  # its offset is from the first number of all
    return RowTensor(tensor.rows, View(first, count, steps, rest))


def _slice(args):
    """start, end and step, of arguments that may be left out."""
    return (*args, *(0, None, None, 1)[len(args) :])[1:]
