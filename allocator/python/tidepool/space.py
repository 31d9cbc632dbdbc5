# SPDX-License-Identifier: Apache-2.0
"""Spaces: the far tiers that tables are in, local memory for their hot rows, and the threads that work for them."""

import collections
import itertools
import os
import threading
import weakref

from . import _core
from ._arguments import is_part, real, size, whole
from .errors import Conflict, Error, InvalidArgument


class Space:
    """What the tables of one program share.

    far      where tables can be besides local memory, in order: "cxl:4G" (an emulated pool, private to the process),
             "dax:PATH", "numa:NODE", "auto" (such a node, else such a device), "remote:HOST:PORT[:SIZE]" (a memory
             server: `fabricmgr memserver`; SIZE of its memory, else all that is free there, and other programs get
             none), "fabric[:SIZE]" (regions from the fabric manager, as tables need them; SIZE: at most).
             Table(tier=1) is in the first of them, tier=0 in local memory. They are opened when the first table needs
             them.
    threads  that work on one call, the caller counted; 0: as many as the process may use processors.
    timeout  seconds after which a memory server, or the host's agent, that does not answer is given up.
    dram     local memory for the hot rows of all tables in far tiers that name no `dram` of their own, and what is
             known of them: bytes, "2G", or "10%" of those tables (of a small one enough for 64 rows, the least there
             is): it then grows with each such table and becomes less when one is closed. Tables begin with even
             shares. These follow what each table gains by its memory, by miss-ratio curves of the look-ups it really
             gets, and together they are never above it; results do not depend on them. set_dram() changes it. Rows
             of a region that is drained, and have no room in others, take some of it.
    agent    the socket of the host's agent, for "fabric"; empty: the usual one.

    A context manager: leaving it closes the space with its tables and tensor stores. Thread-safe. Belongs to the process that made it:
    after fork(), the child cannot use it (tidepool.Unusable), and its end does nothing to the parent's.
    Raises InvalidArgument (ValueError) for a text that names no tier, Unsupported for a kind that tables cannot use,
    TypeError and InvalidArgument for a `dram` that is no size, or none at all.
    """

    def __init__(self, far=(), threads=0, timeout=5.0, dram="10%", agent=""):
        if isinstance(far, str) or not all(isinstance(text, str) for text in far):
            raise TypeError('far: a list of texts such as "cxl:4G" is needed')
        self._tables = weakref.WeakSet()
        self._far = tuple(far)
        self._owner = os.getpid()
        self._dram_lock = threading.Lock()  # of what is below, but for the two of _settle()
        self._dram = _checked_dram(dram)
        self._sharing = {}  # tables that share, by number: (bytes of all its rows, least bytes)
        self._parts = 0  # of all those together, if dram is a part
        self._numbers = itertools.count()
        self._left = collections.deque()  # numbers of tables that do not share any more
        self._stale = False
        self._core = _core.Space(
            list(self._far),
            whole(threads, "threads", 0, 1024),
            real(timeout, "timeout", 1e-6, 3600.1),
            os.fspath(agent),
        )
        self._core.set_dram(self._budget())

    @property
    def far(self):
        """The texts of the far tiers, as they were given."""
        return self._far

    @property
    def threads(self):
        """Threads that work on one call, the caller counted."""
        return self._core.threads

    @property
    def dram(self):
        """Bytes of local memory that tables without a `dram` of their own share now; 0 while it is a part of tables
        and there are none. Raises Unusable."""
        return self._core.dram

    def set_dram(self, dram):
        """Changes what tables without a `dram` of their own share, for those that are there, too: rows leave, or more
        may come. dram: as in Space(). Thread-safe; may be called between look-ups of a training run.

        Raises TypeError, InvalidArgument (no size, or 0), NoSpace (less than the tables need, which the text says),
        Conflict (rows of announced batches need more: finish those first), Unusable. It is then as it was."""
        dram = _checked_dram(dram)
        with self._dram_lock:
            self._let_go()
            before = self._dram, self._parts
            self._dram = dram
            self._parts = sum(map(self._part, self._sharing.values())) if is_part(dram) else 0
            try:
                self._core.set_dram(self._budget())
            except Error:
                self._dram, self._parts = before
                raise
        self._settle_stale()

    def _settle(self, number):
        """A table does not share any more: the others have what is theirs by now. May be called by the garbage
        collector while this very thread has the lock: then the holder does it afterwards."""
        self._left.append(number)
        self._stale = True
        self._settle_stale()

    def _settle_stale(self):
        while self._stale and self._dram_lock.acquire(blocking=False):
            try:
                self._stale = False
                self._let_go()
                if not self.closed and is_part(self._dram):
                    self._core.set_dram(self._budget())
            except Error:
                pass  # announced batches have it; the next table that is made or closed makes up for it
            finally:
                self._dram_lock.release()

    def _let_go(self):
        """Of tables that have left nothing is counted. The lock is held."""
        while self._left:
            needs = self._sharing.pop(self._left.popleft(), None)
            if needs is not None:
                self._parts -= self._part(needs)

    def _table_gone(self, core, number):
        """A table that shared was forgotten rather than closed."""
        if self._owner == os.getpid():
            core.close()
            self._settle(number)

    def _part(self, needs):
        """Bytes that a table brings. The lock is held."""
        all_rows, least = needs
        return max(size(self._dram, "dram", all_rows), least) if is_part(self._dram) else 0

    def _budget(self):
        """Bytes, of the tables that share by now. The lock is held."""
        return self._parts if is_part(self._dram) else size(self._dram, "dram", 0)

    def _create_table(self, table, options, tier, shares):
        """The core's table of `table`."""
        if not shares:
            return self._core.create_table(options, tier)
        needs = options.rows * options.format.row_bytes, _least_of_part(self._core.least_share(options, tier), options)
        number = table._share = next(self._numbers)
        with self._dram_lock:
            self._let_go()
            self._sharing[number] = needs
            self._parts += self._part(needs)
            try:
                self._core.set_dram(self._budget())
            except Conflict:
                pass  # tables that are gone leave more than there is to be: announced batches have it
            except Error:
                self._left.append(number)
                self._let_go()
                raise
        self._settle_stale()
        try:
            core = self._core.create_table(options, tier)
        except BaseException:
            self._table_closed(table)
            raise
        weakref.finalize(table, self._table_gone, core, number).atexit = False
        return core

    def _table_closed(self, table):
        """The share of a table is gone, and with it what it brought."""
        # In a child of fork() the lock may be held by a thread that is not there.
        if self._owner == os.getpid() and table._share is not None:
            self._settle(table._share)

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
        if self._owner == os.getpid():
            with self._dram_lock:  # one table after the other, their shares need not follow
                self._sharing.clear()
                self._parts = 0
            self._stale = False
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


def _checked_dram(dram):
    if size(dram, "dram", 2**40) == 0:
        raise InvalidArgument("dram: tables that share it need some; give bytes, a text such as 2G, or 10%")
    return dram


def _least_of_part(least, options):
    """What a part of a table comes to at the least: enough for 64 rows more than it can do with."""
    return least + 64 * (options.format.row_bytes + 64)
