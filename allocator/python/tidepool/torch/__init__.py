# SPDX-License-Identifier: Apache-2.0
"""Tidepool's tables as modules for PyTorch: what they are given and give back are torch tensors.

The step of a table's optimizer is taken by backward(): there is no dense gradient, nothing for torch.optim to do, and
rows are read and written once. See EmbeddingBag.
"""

from .bag import EmbeddingBag, default_space
from .checkpoint import restore, save
from .collection import EmbeddingBagCollection

__all__ = ["EmbeddingBag", "EmbeddingBagCollection", "default_space", "restore", "save"]
