# SPDX-License-Identifier: Apache-2.0
"""Announces batches that a DataLoader's workers have ready to the tables that are going to look their ids up.

Which tensor of a batch is whose ids is learned from the batches that the program has used (ahead_source.py), and
whether it pays is measured (ahead_policy.py). Announcing changes no number: it brings rows in earlier. Thread-safe.
Whatever goes wrong here ends it, and nothing else.
"""

import collections
import functools
import os
import queue
import sys
import threading
import time
import weakref

from torch.utils.data import dataloader

from . import rows as rows_of_tables
from .ahead_policy import Announced, Trust, Worth
from .ahead_source import find, id_tensors
from .library import say

_DEPTH = 4  # batches that are announced beyond the newest that was handed out
_REMEMBERED = 3  # batches handed out whose look-ups may still come
_SEARCHES = 16  # look-ups of a table whose ids are searched for, and then ever fewer
_STREAM = "_tidepool_stream"

_lock = threading.Lock()
_holder = None  # the thread that has it
_streams = []  # of loaders in use
_dropped = collections.deque()  # streams that are over; may be entered wherever the collector runs
_learned = weakref.WeakKeyDictionary()  # what is known of a loader, while it lives
_owner = None  # the process whose tables they are; None: it is off
_patched = False


class _Queue:
    """A queue that batches arrive in, from which those that have come are taken early, and handed on in their order,
    errors as well: get() gives what it would have given without this."""

    def __init__(self, inner):
        self._inner, self.taken = inner, collections.deque()  # of (message, error)

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def get(self, *args, **kwargs):
        if not self.taken:
            return self._inner.get(*args, **kwargs)
        message, error = self.taken.popleft()
        if error is not None:
            raise error
        return message

    def take_what_has_come(self):
        try:
            while not self.taken or self.taken[-1][1] is None:
                self.taken.append((self._inner.get_nowait(), None))
        except queue.Empty:
            pass
        except Exception as error:  # the program's, when its turn comes
            if _of_a_signal(error):
                raise
            self.taken.append((None, error))


def _of_a_signal(error):
    """Whether it is of torch's handler of the signal that a worker has ended, which raises wherever the program is."""
    return "DataLoader worker" in str(error)


class _Known:
    """A source of a table's ids in a loader's batches."""

    def __init__(self, source, table):
        self.source, self.table, self.trust, self.lag = source, weakref.ref(table), Trust(), 0


def _version(tensor):
    return 0 if tensor.is_inference() else tensor._version


class _Handed:
    """A batch that the program has, by its id tensors, and the sources that were found in use."""

    def __init__(self, number, batch, known):
        self.number, self._tensors = number, id_tensors(batch)
        self._versions = {path: _version(tensor) for path, tensor in self._tensors.items()}
        self.unused, self.used = set(known), set()

    def tensor(self, path):
        """None if there is none, or the program has changed it: others like it would be announced as they come."""
        tensor = self._tensors.get(path)
        return tensor if tensor is not None and _version(tensor) == self._versions[path] else None

    def find(self, ids):
        return find({path: one for path, one in self._tensors.items() if self.tensor(path) is not None}, ids)

    def uses(self, known):
        if known in self.used:
            return
        self.used.add(known)
        self.unused.discard(known)
        known.trust.saw(True)


class _Stream:
    """One iterator over a loader."""

    def __init__(self, known):
        self.known = known  # of the loader: list of _Known
        self.handed = collections.deque()
        self.announced = {}  # number of a batch: [(_Known, token)]


class _AheadOfTable:
    """What is kept for a table."""

    def __init__(self, table):
        self.worth, self.announced = Worth(), Announced()
        self.lookups = self.noted = 0
        self.ended, self.fetched = None, table.counts().fetched
        self.unknown, self.next_search = 0, 0

    def wants_search(self):
        """A look-up of ids from nowhere known: whether to search for where they are from."""
        self.unknown += 1
        if self.unknown <= self.next_search:
            return False
        self.next_search = 0 if self.unknown < _SEARCHES else 2 * self.unknown
        return True

    def tick(self, table):
        """A batch is over."""
        lookups, self.lookups = self.lookups, 0
        began, self.ended = self.ended, time.perf_counter()
        if lookups == 0 or began is None:
            return
        fetched = table.counts().fetched
        self.worth.batch(self.ended - began, lookups, fetched - self.fetched)
        self.fetched = fetched
        if self.worth.rests and self.noted > 0:
            table.stop_prefetch()
            self.announced.clear()
            self.noted = 0


def _of(table):
    if table.ahead is None:
        table.ahead = _AheadOfTable(table)
    return table.ahead


def _finish(table, token):
    if token is not None:
        table.finish(token)


def _over(known, token):
    """The batch is, for that table."""
    table = known.table()
    if table is not None:
        _finish(table, _of(table).announced.over(token))


# ---- Learning ----------------------------------------------------------------------------------


def _look_up(table, ids):
    """The program looks these ids up, int64 and contiguous."""
    ahead = _of(table)
    ahead.lookups += ids.numel()
    for stream in _streams:
        for lag, handed in enumerate(reversed(stream.handed)):
            for known in stream.known:
                tensor = handed.tensor(known.source.path) if known.table() is table else None
                if tensor is not None and known.source.gives(tensor, ids):
                    known.lag = max(known.lag, lag)
                    handed.uses(known)
                    return
    if ids.numel() > 0 and ahead.wants_search():
        for stream in _streams:
            for lag, handed in enumerate(reversed(stream.handed)):
                source = handed.find(ids)
                if source is not None:
                    known = _Known(source, table)
                    known.lag, ahead.unknown = lag, 0
                    stream.known.append(known)
                    handed.uses(known)
                    return


def _forget_lost(stream):
    stream.known[:] = [one for one in stream.known if not one.trust.lost and one.table() is not None]


# ---- Announcing --------------------------------------------------------------------------------


def _hand_out(iterator, batch):
    """The iterator is about to give the program this batch."""
    number = iterator._rcvd_idx - 1
    stream = _stream_of(iterator)
    if stream not in _streams:
        _streams.append(stream)
    for table in {known.table() for known in stream.known if known.trust.won} - {None}:
        _of(table).tick(table)
    _end_batches(stream, number)
    if len(stream.handed) == _REMEMBERED:
        for known in stream.handed.popleft().unused:
            known.trust.saw(False)
        _forget_lost(stream)
    stream.handed.append(_Handed(number, batch, stream.known))
    if any(_announces(known) for known in stream.known):
        _announce(stream, number, batch)
        for later, data in _ready(iterator, number):
            _announce(stream, later, data)


def _announces(known):
    table = known.table()
    return table is not None and known.trust.won and _of(table).worth.announces


def _end_batches(stream, number):
    """Those before the number that is handed out now are over, as far as their look-ups do not lag behind."""
    for earlier in [one for one in stream.announced if one < number]:
        left = []
        for known, token in stream.announced.pop(earlier):
            if earlier + known.lag < number:
                _over(known, token)
            else:
                left.append((known, token))
        if left:
            stream.announced[earlier] = left


def _announce(stream, number, batch):
    if number in stream.announced:
        return
    stream.announced[number] = tokens = []
    for known in stream.known:
        if not _announces(known):
            continue
        table = known.table()
        token = _prefetch(known.source, table, batch)
        if token is not None:
            tokens.append((known, token))
            _finish(table, _of(table).announced.add(token))


def _prefetch(source, table, batch):
    """The token; None if the batch has no ids there, or such as the table has not."""
    ids = source.ids_in(batch)
    if ids is None:
        return None
    ids = ids.contiguous()
    try:
        token = table.prefetch(ids.data_ptr(), ids.numel())
    except IndexError:  # which the look-up will have, if there is one
        return None
    _of(table).noted += 1
    return token


def _ready(iterator, number):
    """(number, batch) of those after this one that have come, in their order, up to the first that has not."""
    arrivals = iterator._data_queue
    if not isinstance(arrivals, _Queue):
        arrivals = iterator._data_queue = _Queue(arrivals)
    arrivals.take_what_has_come()
    waiting = dict(message for message, error in arrivals.taken if error is None and len(message) == 2)
    for later in range(number + 1, min(number + _DEPTH + 1, iterator._send_idx)):
        info = iterator._task_info.get(later, ())
        if len(info) == 2:
            yield later, info[1]
        elif later in waiting:
            yield later, waiting[later]
        elif len(info) == 1 and iterator._workers_status[info[0]]:
            return


# ---- Loaders -----------------------------------------------------------------------------------


def _stream_of(iterator, loader=None):
    """What is kept for the iterator. Without a loader to go by it learns for itself alone."""
    stream = iterator.__dict__.get(_STREAM)
    if stream is None:
        try:
            known = [] if loader is None else _learned.setdefault(loader, [])
        except TypeError:  # a loader that cannot be a key
            known = []
        stream = iterator.__dict__[_STREAM] = _Stream(known)
    return stream


def _drop(iterator):
    """What was announced of it will not be used."""
    stream = iterator.__dict__.pop(_STREAM, None)
    if stream is not None and not sys.is_finalizing():
        _dropped.append(stream)
        _settle()


def _settle():
    """Ends streams that are over. If another thread has the lock, it does this when it is done."""
    while _dropped and _owner == os.getpid() and _lock.acquire(blocking=False):
        _holding(_end_dropped)


def _end_dropped():
    while _dropped:
        _end(_dropped.popleft())


def _end(stream):
    if stream in _streams:
        _streams.remove(stream)
    for tokens in stream.announced.values():
        for known, token in tokens:
            _over(known, token)
    stream.announced.clear()
    stream.handed.clear()


def _stop(error):
    global _owner
    if _of_a_signal(error):
        raise error
    _owner = None
    _streams.clear()
    rows_of_tables.on_look_up = None
    if not isinstance(error, ConnectionError):  # the program's next call has it, too
        say(f"reading ahead: off: {type(error).__name__}: {error}")


def _holding(function, *args):
    """Calls it with the lock, which was taken, and gives that back."""
    global _holder
    try:
        _holder = threading.get_ident()
        function(*args)
    except Exception as error:
        _stop(error)
    finally:
        _holder = None
        _lock.release()


def _guarded(function, *args):
    # The program's code may run inside, in a handler of a signal for instance.
    if _owner == os.getpid() and _holder != threading.get_ident():
        _lock.acquire()
        _holding(function, *args)
        _settle()


def _on_look_up(table, ids):
    if _streams:
        _guarded(_look_up, table, ids)


def _patch(kind):
    plain_next, plain_reset, plain_shutdown = kind._next_data, kind._reset, kind._shutdown_workers

    @functools.wraps(plain_next)
    def next_data(self):
        try:
            batch = plain_next(self)
        except StopIteration:
            _drop(self)
            raise
        if getattr(self, "_in_order", True):
            _guarded(_hand_out, self, batch)
        return batch

    @functools.wraps(plain_reset)
    def reset(self, loader, *args, **kwargs):
        _drop(self)
        _stream_of(self, loader)
        plain_reset(self, loader, *args, **kwargs)

    @functools.wraps(plain_shutdown)
    def shutdown(self):
        _drop(self)
        plain_shutdown(self)

    kind._next_data, kind._reset, kind._shutdown_workers = next_data, reset, shutdown


def watch_loaders():
    """From now on batches of loaders with workers are announced to the tables of this process, where that pays."""
    global _owner, _patched, _lock, _holder
    if _owner == os.getpid() or (_patched and _owner is None):
        return
    if not _patched:
        _patch(dataloader._MultiProcessingDataLoaderIter)
    # In a child of fork(): the parent's are not its own, and a thread of the parent's may have the lock.
    _lock, _holder = threading.Lock(), None
    _streams.clear()
    _dropped.clear()
    _learned.clear()
    _patched, _owner = True, os.getpid()
    rows_of_tables.on_look_up = _on_look_up
