# SPDX-License-Identifier: Apache-2.0
"""Where in a batch the ids of a look-up come from: a tensor in it, or columns of one, and what is added to them."""

import collections
import itertools

import torch

_INTEGERS = (torch.int64, torch.int32)
_MOST_DEPTH, _MOST_VALUES, _MOST_IDS = 6, 1024, 1 << 20
_LEAST_SHIFTED = 8  # rows; that fewer differ by the same is chance


def _inside(value):
    """(key, what is there) of a container that is known, without calling the program's code; None of others."""
    if isinstance(value, dict):
        return dict.items(value)
    if isinstance(value, collections.UserDict):
        return dict.items(value.data)
    if isinstance(value, (list, tuple)):
        return enumerate(list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value))
    return None


def id_tensors(batch):
    """{path: tensor} of tensors that may be ids, as far as there are not too many."""
    found, left, values = {}, _MOST_IDS, 1
    waiting = collections.deque([((), batch)])
    while waiting:
        path, value = waiting.popleft()
        if type(value) is torch.Tensor:
            if _may_be_ids(value) and value.numel() <= left:
                found[path] = value
                left -= value.numel()
            continue
        inside = _inside(value) if len(path) < _MOST_DEPTH else None
        for key, one in itertools.islice(inside or (), _MOST_VALUES - values):
            waiting.append(((*path, key), one))
            values += 1
    return found


def _may_be_ids(tensor):
    return (
        tensor.dtype in _INTEGERS
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and 0 < tensor.numel() <= _MOST_IDS
    )


def _at(batch, path):
    """The tensor there; None if there is none."""
    for key in path:
        inside = _inside(batch)
        if inside is None:
            return None
        missing = object()
        batch = next((one for its, one in inside if its == key), missing)
        if batch is missing:
            return None
    return batch if type(batch) is torch.Tensor and _may_be_ids(batch) else None


class Source:
    """Of the ids of look-ups: the tensor at a path, `length` of it from `start` on along `dim` (None: all of it), with
    `offset` (None, or a tensor that goes with it) added."""

    def __init__(self, path, dim=None, start=0, length=0, offset=None):
        self.path, self.dim, self.start, self.length, self.offset = path, dim, start, length, offset

    def ids(self, tensor):
        """As a table takes them, of the tensor at its path; None if it is another kind of tensor."""
        part = self._part(tensor)
        if part is None:
            return None
        part = part.to(torch.int64)
        if self.offset is not None:
            if part.dim() != self.offset.dim() or part.shape[1:] != self.offset.shape[1:]:
                return None
            part = part + self.offset
        return part.reshape(-1)

    def ids_in(self, batch):
        """The same of a whole batch."""
        tensor = _at(batch, self.path)
        return None if tensor is None else self.ids(tensor)

    def gives(self, tensor, ids):
        """Whether a look-up of these ids may have them from the tensor at its path."""
        found = self.ids(tensor)
        if found is None or found.numel() != ids.numel():
            return False
        return found.data_ptr() == ids.data_ptr() or torch.equal(found, ids)

    def _part(self, tensor):
        if self.dim is None:
            return tensor
        if tensor.dim() <= self.dim or tensor.size(self.dim) < self.start + self.length:
            return None
        return tensor.narrow(self.dim, self.start, self.length)


def _parts(path, tensor, count):
    """Sources of so many ids, in the tensor at the path."""
    if tensor.numel() == count:
        yield Source(path)
    for dim in sorted({0, tensor.dim() - 1}) if tensor.dim() > 1 else ():
        rest = tensor.numel() // tensor.size(dim)
        length = count // rest
        if length * rest == count and 0 < length < tensor.size(dim):
            for start in range(tensor.size(dim) - length + 1):
                yield Source(path, dim, start, length)


def _shift(source, tensor, ids):
    """The number to add to each column of a source so that it gives these ids; None if there is none."""
    part = source._part(tensor)
    if part.size(0) < _LEAST_SHIFTED:
        return None
    shift = ids.view(part.shape) - part
    first = shift[:1].clone()
    return first if bool((shift == first).all()) and bool((part != part[:1]).any()) else None


def find(tensors, ids):
    """The first source of a look-up's ids (int64, contiguous, one dimension) among {path: tensor}; None."""
    count = ids.numel()
    candidates = [
        (source, tensor) for path, tensor in tensors.items() for source in _parts(path, tensor, count)
    ]
    first = int(ids[0]) if count > 0 else 0
    for source, tensor in candidates:
        part = source._part(tensor)
        if int(part[(0,) * part.dim()]) == first and source.gives(tensor, ids):
            return source
    for source, tensor in candidates:
        shift = _shift(source, tensor, ids) if source._part(tensor).dim() > 0 else None
        if shift is not None:
            source.offset = shift
            return source
    return None
