# SPDX-License-Identifier: Apache-2.0
"""Between autograd and the tables: forward looks up, backward takes the step."""

import torch
from torch.autograd.function import once_differentiable

from ..table import BagCall, UpdateCall, bags, updates
from ._recorded import check_alone, record


class Lookup:
    """One table's part of a batch, as bags_of() and weights_of() give it."""

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
        return self.offsets.shape[0] - 1

    def arrays(self):
        """Ids, offsets and weights as the core takes them. For one call: until the next a tensor's memory may have
        moved, as it does when the tensor is sent to another process."""
        ids, offsets, weights = self.ids.numpy().reshape(-1), self.offsets, self.weights
        if isinstance(offsets, torch.Tensor):
            offsets = offsets.numpy()
        if weights is not None:
            weights = weights.numpy().reshape(-1)
        return ids, offsets, weights

    def tensors(self):
        """Those whose memory it uses."""
        return [part for part in (self.ids, self.offsets, self.weights) if isinstance(part, torch.Tensor)]

    def done(self):
        if self.token is not None:
            self.token.done()


def _side_by_side(lookups, insert):
    """Looks all up: (bags, sum of dims). `insert`: hashed ids without a row get one."""
    shape = (lookups[0].bags, sum(lookup.table.dim for lookup in lookups))
    out = torch.empty(shape, dtype=torch.float32, device="cpu")
    whole, calls, column = out.numpy(), [], 0
    for lookup in lookups:
        end = column + lookup.table.dim
        calls.append(BagCall(lookup.table, *lookup.arrays(), lookup.mode, whole[:, column:end], insert))
        column = end
    bags(calls)
    return out


def _two_steps(table):
    """What to raise for a second look-up of a table in a loss."""
    return NotImplementedError(
        f"table {table.name}: this loss has more than one look-up of it, and each would take a step of its own where "
        "torch takes one with the sum of their gradients; look all ids up at once and cut up the result: "
        "module(torch.cat([a, b])).split([len(a), len(b)]). Or give each look-up a loss and a backward() of its own, "
        "for a step each"
    )


def _stepped(ctx):
    """The tables that take a step in its backward."""
    return [lookup.table for lookup, wanted in zip(ctx.lookups, ctx.needs_input_grad[1:]) if wanted]


class _Pool(torch.autograd.Function):
    """What takes steps. The anchors, one a table, are what makes autograd call backward."""

    @staticmethod
    def forward(ctx, lookups, *anchors):
        out = _side_by_side(lookups, insert=True)
        ctx.lookups = lookups
        record(ctx, _stepped(ctx), _two_steps)
        # Autograd notices when they are changed before backward, as it would with torch's own module.
        ctx.save_for_backward(*(tensor for lookup in lookups for tensor in lookup.tensors()))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        ctx.saved_tensors  # raises if one was changed, or if the graph was used and freed before
        check_alone(ctx, _stepped(ctx))
        if gradient.dtype != torch.float32 or gradient.stride(1) != 1 or gradient.stride(0) < gradient.shape[1]:
            gradient = gradient.float().contiguous()
        whole, calls, column = gradient.numpy(), [], 0
        for lookup, wanted in zip(ctx.lookups, ctx.needs_input_grad[1:]):
            end = column + lookup.table.dim
            if wanted:
                ids, offsets, weights = lookup.arrays()
                calls.append(UpdateCall(lookup.table, ids, offsets, whole[:, column:end], weights, lookup.mode))
            column = end
        updates(calls)
        for lookup in ctx.lookups:
            lookup.done()
        return (None,) * (1 + len(ctx.lookups))


def pool(lookups, modules):
    """The results of all lookups, each of its module, side by side. Their batches are done after backward, or, where
    there will be none, at once."""
    if torch.is_grad_enabled():
        anchors = [module.anchor for module in modules]
        if any(anchor.requires_grad for anchor in anchors):
            return _Pool.apply(lookups, *anchors)
    # No step follows: rows come into being by training alone, and a full table can be evaluated.
    out = _side_by_side(lookups, insert=False)
    for lookup in lookups:
        lookup.done()
    return out
