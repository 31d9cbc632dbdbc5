# SPDX-License-Identifier: Apache-2.0
"""What torch.nn.EmbeddingBag takes, as ids and offsets of tables."""

import torch

_INTEGERS = (torch.int64, torch.int32)


def _integers(value, argument):
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{argument}: a tensor is needed, not {type(value).__name__}")
    if value.dtype not in _INTEGERS:
        raise TypeError(f"{argument}: a tensor of int64 or int32 is needed, not of {value.dtype}")
    if value.device.type != "cpu":
        raise TypeError(f"{argument}: tables are in CPU memory, and this tensor is on {value.device}")
    return value.to(torch.int64)


class Offsets:
    """Offsets of 2-D inputs, which are the same from batch to batch."""

    def __init__(self):
        self._shape, self._offsets = None, None

    def of(self, bags, length):
        if self._shape != (bags, length):
            self._offsets = torch.arange(0, bags + 1, dtype=torch.int64) * length
            self._shape = (bags, length)
        return self._offsets


def ids_of(value):
    """All ids of an input of either kind, in one dimension."""
    return _integers(value, "input").reshape(-1)


def bags_of(value, offsets, include_last_offset, regular):
    """(ids, offsets) of an input as torch.nn.EmbeddingBag defines it; `regular`: Offsets. int64 tensors without gaps
    are not copied, but for offsets that lack the last one."""
    ids = _integers(value, "input")
    if ids.dim() == 2:
        if offsets is not None:
            raise ValueError("offsets: a 2-D input is bags of one length, and has none")
        return ids.reshape(-1), regular.of(*ids.shape)
    if ids.dim() != 1:
        raise ValueError(f"input: one or two dimensions are needed, not {ids.dim()}")
    if offsets is None:
        raise ValueError("offsets: a 1-D input needs them")
    offsets = _integers(offsets, "offsets")
    if offsets.dim() != 1:
        raise ValueError(f"offsets: one dimension is needed, not {offsets.dim()}")
    if not include_last_offset:
        offsets = torch.cat((offsets, torch.tensor([len(ids)])))
    return ids.contiguous(), offsets.contiguous()


def weights_of(weights, value, mode):
    """per_sample_weights in one dimension, or None."""
    if weights is None:
        return None
    if not isinstance(weights, torch.Tensor):
        raise TypeError(f"per_sample_weights: a tensor is needed, not {type(weights).__name__}")
    if mode != "sum":
        raise NotImplementedError(f'per_sample_weights: mode "sum" alone has them, not "{mode}"')
    if weights.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            "per_sample_weights: they require a gradient, which tables do not have; detach() them"
        )
    if weights.shape != value.shape:
        raise ValueError(
            f"per_sample_weights: the shape {tuple(value.shape)} of the input is needed, not {tuple(weights.shape)}"
        )
    if weights.dtype != torch.float32 or weights.device.type != "cpu":
        raise TypeError(
            f"per_sample_weights: a tensor of float32 in CPU memory is needed, not of {weights.dtype} on "
            f"{weights.device}"
        )
    return weights.detach().reshape(-1)
