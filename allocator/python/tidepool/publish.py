# SPDX-License-Identifier: Apache-2.0
"""Tables that one process trains and publishes, and others of the same host read: serving beside training."""

import dataclasses
import os
import typing

from . import _core
from ._arguments import array, optional_array, whole, word
from .table import Table

_DTYPES = tuple(_core.ElementType.__members__)


class Publisher:
    """Publishes tables in a file, for other processes of this host to read: open_published().

    path    made if it is not there: in a tmpfs such as /dev/shm rows are in memory, once for all readers; on a disk
            the hot ones are. It takes the weights of all rows, those that changed in the last two generations once
            more, and 8 bytes a row (20 of hashed ids). One that was left by a publisher of the same tables, however
            it ended, is gone on with: readers have what it has published until this one publishes
    tables  tidepool.Table, with names that differ; none has another publisher. They stay until close()
    mode    rights of the file, whatever the umask: who may read it may read the tables

    Thread-safe. Belongs to the process that made it: tidepool.Unusable (a RuntimeError) in any other, and after
    close(). Raises InvalidArgument (ValueError), Conflict (a table has a publisher, another process publishes there,
    or other tables are there), Corrupt (another kind of file is there), Unsupported (2**31 rows or more), NoSpace,
    Permission (also if the file is another user's), InputOutput."""

    def __init__(self, path, tables, mode=0o600):
        tables = list(tables)
        for table in tables:
            if not isinstance(table, Table):
                raise TypeError(f"tables: a tidepool.Table is needed, not {type(table).__name__}")
        self._path = os.fspath(path)
        self._core = _core.Publisher([table._core for table in tables], self._path, whole(mode, "mode", 0, 0o777))

    def publish(self):
        """Publishes the rows that have changed since the last time, the first time all, as they are between two calls
        on any of the tables; these wait meanwhile. Returns the number of the generation, which counts up from 1.
        Readers have all of it from one moment on, or none: if this raises, or the process ends, they have what they
        had, and the next call makes up for it. Raises NoSpace (where the file is), NotFound (it was removed or cut
        short: make another Publisher), Unreachable, TimedOut, Lost."""
        return self._core.publish()

    def close(self):
        """Ends it. Readers keep what was published last. Idempotent."""
        self._core.close()

    @property
    def path(self):
        """Of the file."""
        return self._path

    @property
    def closed(self):
        """Whether close() was called."""
        return self._core.closed

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce__(self):
        raise TypeError("a tidepool.Publisher belongs to its process and cannot be copied or pickled")


@dataclasses.dataclass(frozen=True)
class PublishedTable:
    """What is published of one table."""

    name: str
    rows: int  # of hashed ids: at most so many
    dim: int
    dtype: str  # a word such as "float32"
    ids: str  # "dense" or "hashed"


class Published:
    """Tables that another process publishes: see open_published(). Each call sees one generation, the newest when it
    begins, of all its tables and rows alike. Reading locks nothing: any number of threads may, and forked children."""

    def __init__(self, path):
        self._core = _core.Published(os.fspath(path))
        tables = self._core.tables()
        self._tables = {each["name"]: PublishedTable(**{**each, "dtype": _DTYPES[each["dtype"]]}) for each in tables}

    @property
    def tables(self):
        """What is published: PublishedTable by name."""
        return dict(self._tables)

    @property
    def generation(self):
        """The number of the newest generation; it counts up from 1."""
        return self._core.generation

    @property
    def published_at(self):
        """When that was published: seconds since 1970, as time.time() has them."""
        return self._core.published_at / 1e9

    @property
    def repeated(self):
        """Calls that had to begin again, because two generations were published meanwhile."""
        return self._core.repeated

    def bag(self, table, ids, offsets, weights=None, mode="sum", out=None):
        """As Table.bag() of the table of that name, with insert=False. Raises NotFound (no table of that name),
        TimedOut (generations come so fast that each of a hundred tries was overtaken by two of them), and for
        arguments as that does."""
        return self.bags([(table, ids, offsets, weights, mode, out)])[0][0]

    def bags(self, calls):
        """The same for several tables in one call, of one generation.

        calls  tuples (table, ids, offsets[, weights[, mode[, out]]]), such as PublishedCall
        Returns a list of arrays, in the order of the calls, and the generation."""
        parts = []
        for call in calls:
            if not isinstance(call, PublishedCall):
                call = PublishedCall(*call)
            parts.append(
                (
                    call.table,
                    array(call.ids, "ids"),
                    array(call.offsets, "offsets"),
                    optional_array(call.weights, "weights"),
                    word(call.mode, "mode", _core.Pooling),
                    optional_array(call.out, "out"),
                )
            )
        return self._core.bags(parts)

    def read(self, table, ids, out=None):
        """The rows of the ids, float32 (n, dim), of one generation. NotFound (a LookupError) for a hashed id without a
        row. Errors otherwise as those of bag()."""
        return self._core.read(table, array(ids, "ids"), optional_array(out, "out"))[0]

    def close(self):
        """Calls under way end first. Idempotent."""
        self._core.close()

    @property
    def closed(self):
        """Whether close() was called."""
        return self._core.closed

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class PublishedCall(typing.NamedTuple):
    """One table's part of Published.bags(): the arguments of Published.bag()."""

    table: str
    ids: typing.Any
    offsets: typing.Any
    weights: typing.Any = None
    mode: str = "sum"
    out: typing.Any = None


def open_published(path):
    """Opens what a Publisher has published at a path: Published. Needs no space, and takes no local memory but buffers
    of a call: rows are read where they are. Who may write the file is trusted not to cut it short. Who has opened a file
    that was removed since keeps what it has; its published_at grows old. Raises, with what to do next, NotFound (no
    such file, or nothing is published there yet), Permission, Corrupt (another kind of file), Unsupported (another
    version of the format), Failed (of another host, or of before this one started)."""
    return Published(path)
