# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of whole models: the tables while training goes on, the dense part with them, of the same moment."""

import io

import torch

from .. import checkpoint
from .bag import EmbeddingBag, without_rows


def save(directory, model, extra=None, kind="full", **options):
    """Begins a checkpoint of a model: the tables of its tidepool.torch modules, and beside them the state_dict of
    all the rest, copied before this returns. Call it between two steps. Returns a tidepool.Checkpoint.

    model  torch.nn.Module with at least one tidepool.torch.EmbeddingBag in it
    extra  what else a resumed run needs, for torch.save(): the optimizer's state_dict(), the batch's number, ...
    kind, options
           as tidepool.save(): kind "full", "incremental", "auto"; keep, rate, ... A table that two modules share is
           saved once

    Raises what tidepool.save() does, and ValueError for a model without tables."""
    modules = _modules(model)
    with without_rows():
        dense = model.state_dict()
    state = io.BytesIO()
    names = {path: module.table.name for path, module in modules.items()}
    torch.save({"model": dense, "tables": names, "extra": extra}, state)
    return checkpoint.save(directory, _unique(modules), kind, state=state.getvalue(), **options)


def restore(directory, model, number=0):
    """Puts a checkpoint of save() back into a model of the same shape, whose tables may be in other tiers and have
    other names. Returns `extra`. number: of the checkpoint; 0: the newest.

    Raises what tidepool.restore() does, with nothing changed where that says so (Conflict while batches are announced:
    drop_announced() ends that); ValueError when the checkpoint is of
    a model with other modules; RuntimeError of load_state_dict() when the dense part does not fit, after the tables
    were restored. Reads the dense part by torch.load(), which runs what a crafted file tells it: restore what you
    trust."""
    state = torch.load(io.BytesIO(checkpoint.load_state(directory, number)), map_location="cpu")
    modules = _modules(model)
    if not isinstance(state, dict) or "tables" not in state:
        raise ValueError(f"{directory} has no checkpoint of tidepool.torch.save()")
    if set(state["tables"]) != set(modules):
        saved, there = ", ".join(sorted(state["tables"])), ", ".join(sorted(modules))
        raise ValueError(f"the checkpoint has tables of the modules {saved}, and the model has {there}")
    parts = {id(module.table): (module.table, state["tables"][path]) for path, module in modules.items()}
    checkpoint.restore(directory, [checkpoint.RestorePart(*part) for part in parts.values()], number)
    with without_rows():
        model.load_state_dict(state["model"])
    return state["extra"]


def drop_announced(model):
    """Forgets all batches that were announced to the tidepool.torch modules in a model, as a loop does that was broken
    off: restore() wants none. See EmbeddingBag.drop_announced(). Raises ValueError for a model without tables."""
    for module in _modules(model).values():
        module.drop_announced()


def _modules(model):
    modules = {path: module for path, module in model.named_modules() if isinstance(module, EmbeddingBag)}
    if not modules:
        raise ValueError("model: it has no tidepool.torch.EmbeddingBag; torch.save() saves the others")
    return modules


def _unique(modules):
    return list({id(module.table): module.table for module in modules.values()}.values())
