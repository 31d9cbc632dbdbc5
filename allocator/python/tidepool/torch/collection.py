# SPDX-License-Identifier: Apache-2.0
"""Several embedding bags looked up in one call, and trained in one."""

import torch

from ..table import prefetches
from ._function import pool
from .bag import EmbeddingBag


class _Bags(torch.nn.ModuleDict):
    """A ModuleDict whose keys may be any names: torch's has none called "items", "type" or as another attribute."""

    def add_module(self, name, module):
        if not isinstance(name, str):
            raise TypeError(f"bags: keys are texts, and {name!r} is of {type(name).__name__}")
        if not name or "." in name:
            raise ValueError(f"bags: {name!r} cannot be a key: state_dict() has names with dots between their parts")
        self._modules[name] = module


def _checked(bags):
    """The modules by their keys: names, or positions in a list. Raises TypeError, ValueError."""
    if isinstance(bags, torch.nn.Module) and not isinstance(bags, (torch.nn.ModuleDict, torch.nn.ModuleList)):
        raise TypeError(f"bags: a list or a dict of modules is needed, not one {type(bags).__name__}")
    try:
        modules = dict(bags.items() if hasattr(bags, "items") else enumerate(bags))
    except TypeError:
        raise TypeError(f"bags: a list or a dict of modules is needed, not {type(bags).__name__}") from None
    if not modules:
        raise ValueError("bags: at least one is needed")
    first = next(iter(modules.values()))
    keys = {}  # by table
    for key, module in modules.items():
        if not isinstance(module, EmbeddingBag):
            kind = type(module)
            raise TypeError(
                f"bags[{key!r}]: a tidepool.torch.EmbeddingBag is needed, not {kind.__module__}.{kind.__qualname__}"
            )
        if module.table.space is not first.table.space:
            raise ValueError(
                f"bags[{key!r}]: table {module.table.name} is of another space than table {first.table.name}; "
                "give all the same space="
            )
        other = keys.setdefault(module.table, key)
        if other != key:
            raise ValueError(
                f"bags[{key!r}]: table {module.table.name} is that of bags[{other!r}], and would take two steps where "
                "torch takes one; give it once, look the ids of both up together, torch.cat([a, b]), and cut up the "
                "result"
            )
    return modules


def _arguments(entry, key):
    """An entry of a batch as the arguments of EmbeddingBag.forward()."""
    if isinstance(entry, torch.Tensor):
        return (entry,)
    if not isinstance(entry, (tuple, list)) or not 1 <= len(entry) <= 3:
        what = f"{len(entry)} parts" if isinstance(entry, (tuple, list)) else type(entry).__name__
        raise TypeError(
            f"batch[{key!r}]: a tensor or a tuple (input[, offsets[, per_sample_weights]]) is needed, not {what}"
        )
    return tuple(entry)


class EmbeddingBagCollection(torch.nn.Module):
    """The results of several EmbeddingBag modules of one space side by side.

    bags  EmbeddingBag modules, a list or a dict; they may also be used on their own. Keys are any texts without dots
    dram  Space.set_dram() of their space: local memory that all its tables share which name no dram of their own,
          bytes, "2G" or "10%" of those tables; each has what it gains most by. None: as the space has it

    forward(batch) takes one entry a module, in their order (or a dict with the same keys): a 2-D tensor, or a tuple
    with the arguments of EmbeddingBag.forward(). All have the same number of bags. Returns float32
    (bags, sum of dims); `split()` cuts it up without copying. One call to the tables forward and one backward: work is
    shared out over all threads, and requests to memory servers are under way together. Otherwise as EmbeddingBag.

    Raises TypeError and ValueError, which name the key, for bags that are none, or of several spaces, and for batches
    that lack one; with `dram`, what Space.set_dram() does, and ValueError if a table has a dram of its own.
    """

    def __init__(self, bags, dram=None):
        super().__init__()
        modules = _checked(bags)
        names = hasattr(bags, "items")
        self.bags = _Bags(modules) if names else torch.nn.ModuleList(modules.values())
        if dram is not None:
            for key, module in modules.items():
                if module.table.tier > 0 and not module.table.shares_dram:
                    raise ValueError(
                        f"bags[{key!r}]: table {module.table.name} was given a dram of its own; make it without, "
                        "or name none for the collection"
                    )
            module.table.space.set_dram(dram)

    @property
    def _named(self):
        return isinstance(self.bags, torch.nn.ModuleDict)

    def _modules_by_key(self):
        """Keys are positions where the modules were given as a list."""
        bags = self.bags
        return dict(bags.items() if isinstance(bags, torch.nn.ModuleDict) else enumerate(bags))

    def _paired(self, batch):
        """{key: (module, arguments)} of all modules. Raises TypeError, ValueError."""
        modules = self._modules_by_key()
        if isinstance(batch, dict) and batch.keys() == modules.keys() and self._named:
            entries = (batch[key] for key in modules)
        elif isinstance(batch, (tuple, list)) and len(batch) == len(modules):
            entries = batch
        else:
            raise self._mismatch(batch, list(modules))
        return {
            key: (module, _arguments(entry, key)) for (key, module), entry in zip(modules.items(), entries)
        }

    def _mismatch(self, batch, keys):
        """What to raise for a batch that has not one entry for each key."""
        there = "tables are " + ", ".join(map(repr, keys)) if self._named else f"there are {len(keys)} tables"
        if isinstance(batch, dict):
            if not self._named:
                return TypeError(f"batch: a dict, but the bags were given as a list; {there}: give a list of entries")
            what, wrong = "no entry for", [key for key in keys if key not in batch]
            if not wrong:
                what, wrong = "no table called", [key for key in batch if key not in keys]
            return ValueError(f"batch: {what} {', '.join(map(repr, wrong))}; {there}: give each one entry")
        if not isinstance(batch, (tuple, list)):
            kind = "dict or list" if self._named else "list"
            return TypeError(f"batch: a {kind} with an entry a table is needed, not one {type(batch).__name__}; {there}")
        return ValueError(f"batch: {len(batch)} entries; {there}: give each one entry")

    @property
    def dims(self):
        """Columns of each module in the result."""
        return [module.embedding_dim for module in self._modules_by_key().values()]

    def _lookups(self, paired):
        """Those of all, checked, before any of their announced batches is taken as used."""
        lookups = {}
        for key, (module, arguments) in paired.items():
            try:
                lookups[key] = module.lookup(*arguments)
            except (TypeError, ValueError, NotImplementedError) as error:
                raise type(error)(f"batch[{key!r}]: {error}") from None
        if len({lookup.bags for lookup in lookups.values()}) != 1:
            each = ", ".join(f"{key!r} has {lookup.bags}" for key, lookup in lookups.items())
            raise ValueError(f"batch: the same number of bags is needed of all, but {each}")
        return list(lookups.values())

    def forward(self, batch):
        paired = self._paired(batch)
        lookups = self._lookups(paired)
        for lookup, (module, arguments) in zip(lookups, paired.values()):
            lookup.token = module.announced(arguments[0])
        return pool(lookups, [module for module, _ in paired.values()])

    def split(self, pooled):
        """The part of each module of a result, float32 (bags, dim): a tuple of tensors, or a dict if the modules were
        given as one. Raises ValueError for a tensor of another width."""
        if not isinstance(pooled, torch.Tensor) or pooled.dim() != 2 or pooled.shape[1] != sum(self.dims):
            what = tuple(pooled.shape) if isinstance(pooled, torch.Tensor) else type(pooled).__name__
            raise ValueError(f"pooled: a result of forward(), of {sum(self.dims)} columns, is needed, not {what}")
        parts = torch.split(pooled, self.dims, dim=1)
        return dict(zip(self.bags.keys(), parts)) if self._named else parts

    def prefetch(self, batch):
        """Announces a batch, as EmbeddingBag.prefetch() does. Takes what forward() takes."""
        paired = self._paired(batch)
        tokens = prefetches([(lookup.table, lookup.arrays()[0]) for lookup in self._lookups(paired)])
        for (module, arguments), token in zip(paired.values(), tokens):
            module._ahead.append((arguments[0], token))

    def drop_announced(self):
        """Forgets all announced batches of its modules, as EmbeddingBag.drop_announced() does."""
        for module in self._modules_by_key().values():
            module.drop_announced()

    def set_lr(self, lr):
        """Changes the learning rate of the next steps of all tables."""
        for module in self._modules_by_key().values():
            module.set_lr(lr)
