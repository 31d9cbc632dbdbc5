# SPDX-License-Identifier: Apache-2.0
"""Spaces: the far tiers that tables are in, and the threads that work for them."""

import weakref

from . import _core
from ._arguments import real, whole


class Space:
    """What the tables of one program share.

    far      where tables can be besides local memory, in order: "cxl:4G" (an emulated pool, private to the process),
             "dax:PATH", "remote:HOST:PORT[:SIZE]" (a memory server: `fabricmgr memserver`). Table(tier=1) is in the
             first of them, tier=0 in local memory. They are opened when the first table needs them.
    threads  that work on one call, the caller counted; 0: as many as the process may use processors.
    timeout  seconds after which a memory server that does not answer is given up.

    A context manager: leaving it closes the space with its tables and tensor stores. Thread-safe. Belongs to the process that made it:
    after fork(), the child cannot use it (tidepool.Unusable), and its end does nothing to the parent's.
    Raises InvalidArgument (ValueError) for a text that names no tier, Unsupported for a kind that tables cannot use.
    """

    def __init__(self, far=(), threads=0, timeout=5.0):
        if isinstance(far, str) or not all(isinstance(text, str) for text in far):
            raise TypeError('far: a list of texts such as "cxl:4G" is needed')
        self._tables = weakref.WeakSet()
        self._far = tuple(far)
        self._core = _core.Space(
            list(self._far), whole(threads, "threads", 0, 1024), real(timeout, "timeout", 1e-6, 3600.1)
        )

    @property
    def far(self):
        """The texts of the far tiers, as they were given."""
        return self._far

    @property
    def threads(self):
        """Threads that work on one call, the caller counted."""
        return self._core.threads

    def tensors(self, tier=1, **options):
        """A new store of tensors in a far tier: TensorStore(space, tier, ...), which has the options and errors."""
        from .tensors import TensorStore

        return TensorStore(self, tier, **options)

    @property
    def closed(self):
        """Whether close() was called."""
        return self._core.closed

    def close(self):
        """Closes all its tables and tensor stores, then gives back tiers and threads. Calls under way end first. Idempotent."""
        for table in list(self._tables):
            table.close()
        self._core.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"tidepool.Space(far={list(self._far)!r}{', closed' if self.closed else ''})"

    def __reduce__(self):
        raise TypeError("a tidepool.Space belongs to its process and cannot be copied or pickled")
