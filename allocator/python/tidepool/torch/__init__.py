# SPDX-License-Identifier: Apache-2.0
"""Tidepool's tables as modules for PyTorch: what they are given and give back are torch tensors.

The step of a table's optimizer is taken by backward(): there is no dense gradient, nothing for torch.optim to do, and
rows are read and written once. See EmbeddingBag.

Calls on tables share their work among PyTorch's own (OpenMP) threads, from this package's import on, as long as
torch.get_num_threads() is no less than their space's threads: those stay awake for milliseconds after each operation,
and other threads would have to wait for processors.
"""

import torch as _torch  # noqa: F401: its OpenMP library first

from .. import _core
from .bag import EmbeddingBag, default_space
from .checkpoint import drop_announced, restore, save
from .collection import EmbeddingBagCollection

__all__ = ["EmbeddingBag", "EmbeddingBagCollection", "default_space", "drop_announced", "restore", "save"]

_core.share_openmp_threads()
