# SPDX-License-Identifier: Apache-2.0
"""Embedding tables larger than local memory, in local DRAM, CXL pools and memory servers.

    with tidepool.Space(far=["remote:127.0.0.1:7777"]) as space:
        table = tidepool.Table(space, "users", rows=1_000_000, dim=64, tier=1, dram="10%")
        pooled = table.bag(ids, offsets)
        table.update(ids, offsets, gradients)

tidepool.torch has the same as modules for PyTorch; it is imported by name: `import tidepool.torch`.
"""

from .errors import (
    BadId,
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
from .space import Space
from .table import BagCall, Counts, Table, Token, UpdateCall, bags, prefetches, updates

__all__ = [
    "BadId",
    "BagCall",
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
    "Space",
    "Table",
    "TimedOut",
    "Token",
    "Unreachable",
    "Unsupported",
    "Unusable",
    "UpdateCall",
    "bags",
    "prefetches",
    "updates",
]
