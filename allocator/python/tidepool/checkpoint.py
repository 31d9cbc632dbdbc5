# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tables: begun between two batches, written while training goes on, put back into tables of any tier
and size."""

import asyncio
import concurrent.futures
import dataclasses
import os
import threading
import typing

from . import _core
from ._arguments import size, whole, word
from .errors import Conflict, InvalidArgument, NotFound
from .table import Table


@dataclasses.dataclass(frozen=True)
class CheckpointTable:
    """What a checkpoint has of one table."""

    name: str
    rows: int  # that existed
    capacity: int  # that there was room for
    ids: str  # "dense" or "hashed"
    format: str  # type, optimizer and dim, such as "float32 adam 64"
    steps: int  # that its optimizer had taken
    files: int  # that a restore reads: one, and one for each incremental checkpoint since


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint has, as its manifest says."""

    number: int  # in its directory, counting up from 1
    kind: str  # "full" or "incremental"
    created: int  # seconds since 1970
    bytes: int  # of all files that it needs
    has_state: bool  # whether the trainer's own state is with it
    tables: typing.Tuple[CheckpointTable, ...]


@dataclasses.dataclass(frozen=True)
class CheckpointReport:
    """What verify() or checkpoints() found. `info` is None if the manifest cannot be read."""

    number: int
    info: typing.Optional[CheckpointInfo]
    problems: typing.Tuple[str, ...]  # none: it can be restored
    rows: int  # that were read
    bytes: int

    @property
    def ok(self):
        """Whether nothing is wrong with it."""
        return not self.problems


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a checkpoint is."""

    rows: int  # handed to the disk
    rows_in_all: int  # of a full one; 0 of others, where nobody knows before the end
    bytes: int
    rows_copied: int  # because they were about to change
    waits: int  # times that training waited for the disk
    waited_seconds: float
    done: bool


class Checkpoint:
    """A checkpoint being taken. Training may go on; result() or `await` waits for it. Unless it ends well there is no
    such checkpoint, and those before are as they were. The program's end waits for it; cancel() is quicker.
    Thread-safe. Belongs to the process that began it: tidepool.Unusable in a forked child."""

    def __init__(self, core):
        self._core = core
        self._owner = os.getpid()
        self._over = concurrent.futures.Future()
        threading.Thread(target=self._wait, name="tidepool-checkpoint").start()

    def _wait(self):
        try:
            self._over.set_result(_info(self._core.wait()))
        except BaseException as error:
            self._over.set_exception(error)

    @property
    def number(self):
        """Its number in the directory."""
        return self._core.number

    def progress(self):
        """How far it is: Progress."""
        return Progress(**self._core.progress())

    def done(self):
        """Whether it is over, well or not. Does not block."""
        self._core.number  # raises in a forked child, where nobody will ever finish it
        return self._over.done()

    def result(self, timeout=None):
        """Waits, at most `timeout` seconds (None: no limit), until it is on the disk: CheckpointInfo. Raises
        TimeoutError if that was not enough (it goes on), NoSpace (the disk is full), InputOutput, Conflict
        (cancelled), Unreachable, TimedOut or Lost (rows of a memory server)."""
        self._core.number
        try:
            return self._over.result(timeout)
        except concurrent.futures.TimeoutError:
            if self._over.done():
                raise
            raise TimeoutError(f"the checkpoint was not over after {timeout} seconds; it goes on") from None

    def __await__(self):
        self._core.number
        # Who is cancelled while waiting leaves the checkpoint alone.
        return asyncio.shield(asyncio.wrap_future(self._over)).__await__()

    def cancel(self):
        """Gives it up as soon as may be and returns at once; result() raises Conflict then. Too late it does
        nothing."""
        self._core.cancel()

    def __reduce__(self):
        raise TypeError("a tidepool.Checkpoint belongs to its process and cannot be copied or pickled")


class RestorePart(typing.NamedTuple):
    """Rows of a saved table that go into a table: all of them, or with dense ids `count` from row `first` on (None:
    the rest), which become the rows from `to` on."""

    table: Table
    saved: str = ""  # its name in the checkpoint; empty: as the table is called
    first: int = 0
    count: typing.Optional[int] = None
    to: int = 0


def save(directory, tables, kind="full", *, keep=0, state=None, writers=2, copies="64M", rate=None, aside=False):
    """Begins a checkpoint of tables: all as they are now, between two calls on any of them; what is trained from here
    on is not in it. Returns a Checkpoint at once.

    directory  a path; made if there is none, with what it is in. One checkpoint at a time is written to it, and it is
               one job's: keep= counts all that are in it, and restore() takes the newest
    tables     tidepool.Table, with names that differ
    kind       "full": all rows. "incremental": the rows that changed since the newest checkpoint of the directory,
               which must be of the same tables, taken or restored by this process. "auto": incremental if it can be
    keep       checkpoints to leave there once this one is complete, it counted; 0: all
    state      bytes of the caller's own that belong to this moment; load_state() gives them back
    writers    threads that write
    copies     memory for old bytes of rows that change meanwhile: bytes, or "64M". When it is full, training waits
    rate       reads the tables no faster than so many bytes a second ("200M"); None: as fast as the disk takes it
    aside      a full one that the next incremental one does not follow: an export

    Raises InvalidArgument (ValueError), Conflict (another checkpoint of a table or to the directory is under way; what
    changed is not known since the newest one there), NotFound (incremental, and there is none), NoSpace, Permission,
    InputOutput, and Unusable. Nothing was begun then."""
    tables = list(tables)
    for table in tables:
        _checked(table)
    options = _core.CheckpointOptions()
    options.keep = whole(keep, "keep", 0, 2**31)
    options.writers = whole(writers, "writers", 1, 64)
    options.set_copies(size(copies, "copies", 0))
    if rate is not None:
        options.set_rate(size(rate, "rate", 0))
    if state is not None:
        if not isinstance(state, bytes):
            raise TypeError(f"state: bytes are needed, not {type(state).__name__}")
        options.set_state(state)
    if aside:
        options.after = _core.ChangesAfter.count_as_before
    cores, path = [table._core for table in tables], os.fspath(directory)
    if not isinstance(kind, str):
        raise TypeError(f"kind: a word is needed, not {type(kind).__name__}")
    if kind == "auto":
        try:
            return Checkpoint(_core.save(cores, path, _core.CheckpointKind.incremental, options))
        except (NotFound, Conflict):
            kind = "full"
    try:
        kind = word(kind, "kind", _core.CheckpointKind)
    except InvalidArgument:
        raise InvalidArgument(f"kind: {kind!r} is none of full, incremental, auto") from None
    return Checkpoint(_core.save(cores, path, kind, options))


def restore(directory, tables, number=0, weights_only=False):
    """Puts a checkpoint back: rows, the optimizer's state and its count of steps; rates such as lr are the tables'
    own. Tables may be of any tier, dram and, if large enough, size. Returns its CheckpointInfo.

    tables  tidepool.Table, each from the saved one of its name, or RestorePart
    number  of the checkpoint; 0: the newest
    weights_only
            for serving, or for going on with another optimizer: the tables' optimizers may differ from the saved ones, and
            their state and steps begin anew; with "sgd" a row is its weights alone. The next checkpoint of them is full

    Raises, with nothing changed, NotFound (no such checkpoint or table), InvalidArgument (the table is of another
    format or kind of ids), NoSpace (it has too few rows), Conflict (a checkpoint of it is under way, batches are
    announced, or a table with hashed ids has rows already), Corrupt, InputOutput. Damage that only reading the rows
    shows is Corrupt or InputOutput as well: the tables are unusable until a restore succeeds."""
    parts = []
    for part in tables:
        part = part if isinstance(part, RestorePart) else RestorePart(part)
        count = None if part.count is None else whole(part.count, "count", 0, 2**62)
        first, to = whole(part.first, "first", 0, 2**62), whole(part.to, "to", 0, 2**62)
        if not isinstance(part.saved, str):
            raise TypeError(f"saved: a text is needed, not {type(part.saved).__name__}")
        parts.append((_checked(part.table)._core, part.saved, first, count, to))
    return _info(_core.restore(os.fspath(directory), parts, _number(number), bool(weights_only)))


def verify(directory, number=0, threads=0):
    """Reads a checkpoint (0: the newest) through, without tables, and says what is wrong with it: CheckpointReport.
    `threads` read (0: as many as there are processors). Raises NotFound (no directory, or no checkpoint in it),
    Permission, InputOutput."""
    threads = whole(threads, "threads", 0, 1024) or os.cpu_count() or 1
    return _report(_core.verify(os.fspath(directory), _number(number), threads))


def checkpoints(directory):
    """What is in the directory, oldest first, from the manifests alone: a list of CheckpointReport."""
    return [_report(report) for report in _core.checkpoints(os.fspath(directory))]


def load_state(directory, number=0):
    """The bytes that save() was given as `state` with a checkpoint (0: the newest). Raises NotFound if there are none,
    Corrupt."""
    return _core.load_state(os.fspath(directory), _number(number))


def _number(number):
    return whole(number, "number", 0, 2**53)


def _checked(table):
    if not isinstance(table, Table):
        raise TypeError(f"tables: a tidepool.Table is needed, not {type(table).__name__}")
    return table


def _info(manifest):
    tables = tuple(CheckpointTable(**table) for table in manifest["tables"])
    return CheckpointInfo(**{**manifest, "tables": tables})


def _report(report):
    info = None if report["manifest"] is None else _info(report["manifest"])
    return CheckpointReport(report["number"], info, tuple(report["problems"]), report["rows"], report["bytes"])
