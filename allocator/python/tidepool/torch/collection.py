# SPDX-License-Identifier: Apache-2.0
"""Several embedding bags looked up in one call, and trained in one."""

import torch

from ..table import prefetches
from ._function import pool
from ._inputs import ids_of
from .bag import EmbeddingBag


class EmbeddingBagCollection(torch.nn.Module):
    """The results of several EmbeddingBag modules of one space side by side.

    bags  EmbeddingBag modules, a list or a dict; they may also be used on their own

    forward(batch) takes one entry a module, in their order (or a dict with the same keys): a 2-D tensor, or a tuple
    with the arguments of EmbeddingBag.forward(). All have the same number of bags. Returns float32
    (bags, sum of dims); `split()` cuts it up without copying. One call to the tables forward and one backward: work is
    shared out over all threads, and requests to memory servers are under way together. Otherwise as EmbeddingBag.
    """

    def __init__(self, bags):
        super().__init__()
        self.bags = torch.nn.ModuleDict(bags) if isinstance(bags, dict) else torch.nn.ModuleList(bags)
        modules = self._modules_in_order()
        if not modules:
            raise ValueError("bags: at least one is needed")
        for module in modules:
            if not isinstance(module, EmbeddingBag):
                raise TypeError(f"bags: tidepool.torch.EmbeddingBag is needed, not {type(module).__name__}")
            if module.table.space is not modules[0].table.space:
                raise ValueError("bags: their tables are of several spaces")

    def _modules_in_order(self):
        return list(self.bags.values()) if isinstance(self.bags, torch.nn.ModuleDict) else list(self.bags)

    def _paired(self, batch):
        """(module, arguments) of all modules."""
        modules = self._modules_in_order()
        if isinstance(self.bags, torch.nn.ModuleDict) and isinstance(batch, dict):
            if set(batch) != set(self.bags):
                raise ValueError(f"batch: entries for {', '.join(self.bags)} are needed, not for {', '.join(batch)}")
            batch = [batch[key] for key in self.bags]
        if len(batch) != len(modules):
            raise ValueError(f"batch: {len(batch)} entries for {len(modules)} modules")
        return [
            (module, (entry,) if isinstance(entry, torch.Tensor) else tuple(entry))
            for module, entry in zip(modules, batch)
        ]

    @property
    def dims(self):
        """Columns of each module in the result."""
        return [module.embedding_dim for module in self._modules_in_order()]

    def forward(self, batch):
        paired = self._paired(batch)
        lookups = [module.lookup(*entry) for module, entry in paired]
        bags = [lookup.bags for lookup in lookups]
        if len(set(bags)) != 1:
            raise ValueError(f"batch: the same number of bags is needed of all, not {bags}")
        return pool(lookups, [module.anchor for module, _ in paired])

    def split(self, pooled):
        """The part of each module of a result: a tuple of tensors, or a dict if the modules were given as one."""
        parts = torch.split(pooled, self.dims, dim=1)
        return dict(zip(self.bags, parts)) if isinstance(self.bags, torch.nn.ModuleDict) else parts

    def prefetch(self, batch):
        """Announces a batch, as EmbeddingBag.prefetch() does. Takes what forward() takes."""
        paired = self._paired(batch)
        tokens = prefetches([(module.table, ids_of(entry[0])) for module, entry in paired])
        for (module, entry), token in zip(paired, tokens):
            module._ahead.append((entry[0], token))

    def set_lr(self, lr):
        """Changes the learning rate of the next steps of all tables."""
        for module in self._modules_in_order():
            module.set_lr(lr)
