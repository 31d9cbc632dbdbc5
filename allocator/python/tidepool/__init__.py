# SPDX-License-Identifier: Apache-2.0
"""Embedding tables and tensors larger than local memory, in local DRAM, CXL pools and memory servers.

    with tidepool.Space(far=["remote:127.0.0.1:7777"]) as space:
        table = tidepool.Table(space, "users", rows=1_000_000, dim=64, tier=1)
        pooled = table.bag(ids, offsets)
        table.update(ids, offsets, gradients)

Tensors go to far memory and come back by name: space.tensors(). Tables are saved while training goes on: save(), and
restore(). tidepool.torch has the same as modules for PyTorch; it is imported by name: `import tidepool.torch`.
"""

from .errors import (
    BadId,
    Conflict,
    Corrupt,
    Error,
    ErrorCode,
    Failed,
    InputOutput,
    InvalidArgument,
    Lost,
    NoMemory,
    NoSpace,
    NotFound,
    Permission,
    TimedOut,
    Unreachable,
    Unsupported,
    Unusable,
)
from .checkpoint import (
    Checkpoint,
    CheckpointInfo,
    CheckpointReport,
    CheckpointTable,
    Progress,
    RestorePart,
    checkpoints,
    load_state,
    restore,
    save,
    verify,
)
from .publish import Published, PublishedCall, PublishedTable, Publisher, open_published
from .space import Space
from .table import BagCall, Counts, Table, Token, UpdateCall, bags, prefetches, updates
from .tensors import TensorCounts, TensorFuture, TensorInfo, TensorStore

__all__ = [
    "BadId",
    "BagCall",
    "Checkpoint",
    "CheckpointInfo",
    "CheckpointReport",
    "CheckpointTable",
    "Conflict",
    "Corrupt",
    "Counts",
    "Error",
    "ErrorCode",
    "Failed",
    "InputOutput",
    "InvalidArgument",
    "Lost",
    "NoMemory",
    "NoSpace",
    "NotFound",
    "Permission",
    "Progress",
    "Published",
    "PublishedCall",
    "PublishedTable",
    "Publisher",
    "RestorePart",
    "Space",
    "Table",
    "TensorCounts",
    "TensorFuture",
    "TensorInfo",
    "TensorStore",
    "TimedOut",
    "Token",
    "Unreachable",
    "Unsupported",
    "Unusable",
    "UpdateCall",
    "bags",
    "checkpoints",
    "load_state",
    "open_published",
    "prefetches",
    "restore",
    "save",
    "updates",
    "verify",
]
