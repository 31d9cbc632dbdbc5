# SPDX-License-Identifier: Apache-2.0
"""Between autograd and the tables: forward looks up, backward takes the step."""

import torch
from torch.autograd.function import once_differentiable

from ..table import BagCall, UpdateCall, bags, updates


class Lookup:
    """One table's part of a batch, with ids and offsets as the core wants them."""

    __slots__ = ("table", "ids", "offsets", "weights", "mode", "token")

    def __init__(self, table, ids, offsets, weights, mode):
        self.table = table
        self.ids = ids
        self.offsets = offsets
        self.weights = weights
        self.mode = mode
        self.token = None  # of the batch, if it was announced

    @property
    def bags(self):
        return len(self.offsets) - 1

    def done(self):
        if self.token is not None:
            self.token.done()


class _Pool(torch.autograd.Function):
    """Results side by side: (bags, sum of dims). The anchors, one a table, are what makes autograd call backward."""

    @staticmethod
    def forward(ctx, lookups, *anchors):
        out = torch.empty((lookups[0].bags, sum(lookup.table.dim for lookup in lookups)))
        whole, calls, column = out.numpy(), [], 0
        for lookup in lookups:
            part = whole[:, column : column + lookup.table.dim]
            column += lookup.table.dim
            calls.append(
                BagCall(lookup.table, lookup.ids, lookup.offsets, lookup.weights, lookup.mode, part)
            )
        bags(calls)
        ctx.lookups = lookups
        # Autograd notices when they are changed before backward, as it would with torch's own module.
        ctx.save_for_backward(
            *(
                part
                for one in lookups
                for part in (one.ids, one.offsets, one.weights)
                if isinstance(part, torch.Tensor)
            )
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        ctx.saved_tensors  # raises if one was changed, or if the graph was used and freed before
        if gradient.dtype != torch.float32 or gradient.stride(1) != 1 or gradient.stride(0) < gradient.shape[1]:
            gradient = gradient.float().contiguous()
        whole, calls, column = gradient.numpy(), [], 0
        for lookup, wanted in zip(ctx.lookups, ctx.needs_input_grad[1:]):
            part = whole[:, column : column + lookup.table.dim]
            column += lookup.table.dim
            if wanted:
                calls.append(
                    UpdateCall(lookup.table, lookup.ids, lookup.offsets, part, lookup.weights, lookup.mode)
                )
        updates(calls)
        for lookup in ctx.lookups:
            lookup.done()
        return (None,) * (1 + len(ctx.lookups))


def pool(lookups, anchors):
    """The results of all lookups, side by side. Their batches are done after backward, or, where there will be none,
    at once."""
    out = _Pool.apply(lookups, *anchors)
    if not out.requires_grad:
        for lookup in lookups:
            lookup.done()
    return out
