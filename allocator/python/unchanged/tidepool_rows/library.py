# SPDX-License-Identifier: Apache-2.0
"""libtidepool through ctypes: one table of rows without optimizer state, and its errors."""

import ctypes
import itertools
import os
import sys
import weakref

ZEROS, UNIFORM = 0, 1  # tidepool_initializer
ELEMENTS = {"float32": 0, "float16": 1, "bfloat16": 2}  # tidepool_element
_INVALID_ARGUMENT, _UNREACHABLE, _TIMED_OUT, _LOST = 1, 7, 10, 12  # tidepool_status


class Params(ctypes.Structure):
    """tidepool_table_params."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("tier", ctypes.c_char_p),
        ("rows", ctypes.c_uint64),
        ("dim", ctypes.c_uint32),
        ("element", ctypes.c_int32),
        ("optimizer", ctypes.c_int32),
        ("id_kind", ctypes.c_int32),
        ("initializer", ctypes.c_int32),
        ("init_first", ctypes.c_float),
        ("init_second", ctypes.c_float),
        ("seed", ctypes.c_uint64),
        ("dram_bytes", ctypes.c_uint64),
        ("rates", ctypes.c_void_p),
    ]


class Counts(ctypes.Structure):
    """The first of tidepool_table_stats."""

    _fields_ = [("struct_size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64) for name in ("rows", "lookups", "hits", "in_place", "fetched", "prefetched")
    ]


class Settings:
    """What the launcher says in TIDEPOOL_ROWS: `min` bytes from which on a weight is made of rows, whether
    those with dense gradients are, too, whether rows are read `ahead`, and the path of the `library`."""

    def __init__(self, text):
        wanted, _, self.library = text.partition(":")
        least, *words = wanted.split(",")
        self.min, self.dense_gradients, self.ahead = int(least), "all" in words, "no-ahead" not in words


def settings():
    """None where rows are off."""
    text = os.environ.get("TIDEPOOL_ROWS", "")
    return Settings(text) if text else None


_said = set()


def say(what):
    """One line on stderr, once."""
    if what not in _said:
        _said.add(what)
        sys.stderr.write(f"tidepool: rows: {what}\n")


_library = None
_context = None
_numbers = itertools.count()


def _load():
    """The library; once."""
    global _library
    if _library is not None:
        return _library
    library = ctypes.CDLL(settings().library)
    library.tidepool_error_text.restype = ctypes.c_char_p
    rows = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t]
    for name in ("read_rows", "write_rows", "gather_rows", "scatter_rows"):
        getattr(library, f"tidepool_table_{name}").argtypes = rows
    library.tidepool_table_prefetch.argtypes = [*rows[:3], ctypes.c_void_p]
    library.tidepool_table_finish.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.tidepool_table_stop_prefetch.argtypes = [ctypes.c_void_p]
    library.tidepool_table_get_stats.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.tidepool_table_close.argtypes = [ctypes.c_void_p]
    library.tidepool_table_create.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    library.tidepool_distinct_ids.argtypes = [*rows[1:4], ctypes.c_void_p, ctypes.c_void_p]
    _library = library
    return library


def _open():
    """A context in the library; once."""
    global _context
    if _context is None:
        context = ctypes.c_void_p()
        check(_load(), _load().tidepool_open(None, ctypes.byref(context)))
        _context = context
    return _context


def distinct(ids, count, once, positions):
    """How many of `count` ids differ. Addresses of memory for count int64 each: the ids, each once in rising order,
    and which of these each id is."""
    found = ctypes.c_size_t()
    library = _load()
    check(library, library.tidepool_distinct_ids(ids, count, once, ctypes.byref(found), positions))
    return found.value


def check(library, status):
    """Errors: IndexError for an id that no row has, ConnectionError where far memory is gone,
    RuntimeError."""
    if status == 0:
        return
    text = library.tidepool_error_text().decode(errors="replace")
    if status in (_UNREACHABLE, _TIMED_OUT, _LOST):
        raise ConnectionError(f"tidepool: {text}")
    if status == _INVALID_ARGUMENT and "ids[" in text:
        raise IndexError(f"index out of range in self ({text})")
    raise RuntimeError(f"tidepool: {text}")


class Table:
    """Rows of an element in the run's first far tier. Thread-safe. Belongs to the process that made it.

    All addresses are of contiguous memory: `ids` of count int64, `floats` of count x dim float32, in which all elements
    are exact.
    """

    def __init__(self, rows, dim, element="float32", constant=0.0):
        """Every number is `constant`, which is finite. Errors: as check()."""
        self.rows, self.dim = rows, dim
        self.ahead = None  # of ahead.py
        library, context = _load(), _open()
        name = f"rows-{os.getpid()}-{next(_numbers)}-{rows}x{dim}".encode()
        params = Params(struct_size=ctypes.sizeof(Params), name=name, rows=rows, dim=dim)
        params.element = ELEMENTS[element]
        if constant != 0:
            params.initializer = UNIFORM  # from here to here
            params.init_first = params.init_second = constant
        handle = ctypes.c_void_p()
        check(
            library,
            library.tidepool_table_create(context, ctypes.byref(params), ctypes.byref(handle)),
        )
        self._library, self._handle = library, handle.value
        close = weakref.finalize(self, library.tidepool_table_close, self._handle)
        close.atexit = False

    def read(self, ids, count, floats):
        """Rows as they are; does not make them hot."""
        self._call(self._library.tidepool_table_read_rows, ids, count, floats)

    def write(self, ids, count, floats):
        self._call(self._library.tidepool_table_write_rows, ids, count, floats)

    def gather(self, ids, count, floats):
        """As read(), as part of training."""
        self._call(self._library.tidepool_table_gather_rows, ids, count, floats)

    def scatter(self, ids, count, floats):
        self._call(self._library.tidepool_table_scatter_rows, ids, count, floats)

    def prefetch(self, ids, count):
        """Announces a batch; returns what finish() takes."""
        token = ctypes.c_uint64()
        prefetch = self._library.tidepool_table_prefetch
        check(self._library, prefetch(self._handle, ids, count, ctypes.byref(token)))
        return token.value

    def finish(self, token):
        """That batch is over, and those announced before it."""
        check(self._library, self._library.tidepool_table_finish(self._handle, token))

    def stop_prefetch(self):
        """All are over, and none is announced for now."""
        check(self._library, self._library.tidepool_table_stop_prefetch(self._handle))

    def counts(self):
        counts = Counts(struct_size=ctypes.sizeof(Counts))
        check(self._library, self._library.tidepool_table_get_stats(self._handle, ctypes.byref(counts)))
        return counts

    def _call(self, function, ids, count, floats):
        check(self._library, function(self._handle, ids, count, floats, count * self.dim))
