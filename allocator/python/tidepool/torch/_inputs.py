# SPDX-License-Identifier: Apache-2.0
"""What torch.nn.EmbeddingBag takes, as ids and offsets of tables."""

import numpy
import torch

_INTEGERS = (torch.int64, torch.int32)


def _checked(value, argument):
    """A dense tensor in CPU memory. Raises TypeError."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{argument}: a tensor is needed, not {type(value).__name__}")
    if not value.is_cpu:
        raise TypeError(f"{argument}: tables are in CPU memory, and this tensor is on {value.device}; give it .cpu()")
    if value.layout != torch.strided or value.is_nested:
        raise TypeError(f"{argument}: a dense tensor is needed, not one of {value.layout}")


def _integers(value, argument):
    """The tensor as int64 without gaps: itself, if it is that."""
    _checked(value, argument)
    if value.dtype not in _INTEGERS:
        raise TypeError(
            f"{argument}: a tensor of int64 or int32 is needed, not of {value.dtype}; ids and offsets are whole numbers"
        )
    if value.dtype != torch.int64:
        value = value.to(torch.int64)
    return value.contiguous()


class Offsets:
    """Offsets of 2-D inputs, which are the same from batch to batch."""

    def __init__(self):
        self._known = (None, None)  # the shape and its offsets, one object: threads may ask for different ones

    def of(self, bags, length):
        shape, offsets = self._known
        if shape != (bags, length):
            offsets = numpy.arange(0, bags + 1, dtype=numpy.int64) * length
            self._known = ((bags, length), offsets)
        return offsets


def ids_of(value):
    """All ids of an input of either kind, an array of one dimension."""
    return _integers(value, "input").numpy().reshape(-1)


def bags_of(value, offsets, include_last_offset, regular):
    """(ids, offsets) of an input as torch.nn.EmbeddingBag defines it; `regular`: Offsets. Ids are a tensor of one or
    two dimensions. Offsets are a tensor, or an array where they are not the caller's: those that lack the last one are
    copied. Other int64 tensors without gaps are not."""
    ids = _integers(value, "input")
    if ids.dim() == 2:
        if offsets is not None:
            raise ValueError("offsets: a 2-D input is bags of one length, and has none; leave them out, or give 1-D ids")
        return ids, regular.of(*ids.shape)
    if ids.dim() != 1:
        raise ValueError(f"input: one or two dimensions are needed, not {ids.dim()}")
    if offsets is None:
        raise ValueError("offsets: a 1-D input needs them, as they say where its bags begin; or give a 2-D input")
    offsets = _integers(offsets, "offsets")
    if offsets.dim() != 1:
        raise ValueError(f"offsets: one dimension is needed, not {offsets.dim()}")
    ends, count = offsets.numpy(), ids.shape[0]
    _check_ends(ends, count, include_last_offset)
    return ids, offsets if include_last_offset else numpy.concatenate((ends, (count,)))


def _check_ends(offsets, ids, include_last_offset):
    """What the core would say of offsets that were made from these, an array: its numbers are quicker to look at than
    a tensor's. Raises ValueError."""
    if len(offsets) == 0:
        if include_last_offset:
            raise ValueError("offsets: none; with include_last_offset there is one more than there are bags")
        if ids:
            raise ValueError(f"offsets: none, but {ids} ids; the first bag begins at 0")
        return
    first, last = offsets.item(0), offsets.item(-1)
    if first != 0:
        raise ValueError(f"offsets: offsets[0] is {first}; the first bag begins at 0")
    if include_last_offset and last != ids:
        raise ValueError(
            f"offsets: the last one is {last}, but there are {ids} ids; with include_last_offset it is their number"
        )
    if last > ids:
        raise ValueError(f"offsets: the last one is {last}, but there are {ids} ids")


def weights_of(weights, value, mode):
    """per_sample_weights without gaps, or None."""
    if weights is None:
        return None
    _checked(weights, "per_sample_weights")
    if mode != "sum":
        raise NotImplementedError(
            f'per_sample_weights: mode="sum" alone has them, as in torch, and this module has mode="{mode}"'
        )
    if weights.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            "per_sample_weights: they require a gradient, which tables do not have; detach() them"
        )
    if weights.shape != value.shape:
        raise ValueError(
            f"per_sample_weights: the shape {tuple(value.shape)} of the input is needed, not {tuple(weights.shape)}"
        )
    if weights.dtype != torch.float32:
        raise TypeError(f"per_sample_weights: a tensor of float32 is needed, not of {weights.dtype}")
    return weights.detach().contiguous()
