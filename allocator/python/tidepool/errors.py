# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions.

Every failure of Tidepool itself is a `tidepool.Error` with an `ErrorCode` in `code`; each class is the builtin
class that one would expect, too. Arguments of the wrong Python type raise plain TypeError.
"""

import enum


class ErrorCode(enum.IntEnum):
    """Stable across releases, and the same in C, C++ and Python."""

    INVALID_ARGUMENT = 1
    NOT_FOUND = 2
    NO_MEMORY = 3
    NO_SPACE = 4
    PERMISSION = 5
    UNSUPPORTED = 6
    UNREACHABLE = 7
    STALE_EPOCH = 8
    CONFLICT = 9
    TIMED_OUT = 10
    CORRUPT = 11
    LOST = 12
    IO = 13
    INTERNAL = 14
    REFUSED = 15


class Error(Exception):
    """Base of all. `code` is an ErrorCode, `os_error` the errno behind it (0: none); the text says what failed,
    on which object, and what to do next."""

    code: ErrorCode
    os_error: int = 0


class InvalidArgument(Error, ValueError):
    """An argument has an impossible value; nothing was changed."""

    code = ErrorCode.INVALID_ARGUMENT


class BadId(InvalidArgument, IndexError):
    """An id that no row of a dense table has; nothing was changed."""


class Unusable(Error, RuntimeError):
    """The table or space is closed, or belongs to another process."""

    code = ErrorCode.INVALID_ARGUMENT


class NotFound(Error, LookupError):
    """A hashed id without a row, or a far tier that was not given."""


class NoMemory(Error, MemoryError):
    """The operating system refused memory."""


class NoSpace(Error, RuntimeError):
    """A tier or a table is full."""


class Permission(Error, PermissionError):
    """The operating system does not allow it."""


class Unsupported(Error, NotImplementedError):
    """This machine, kernel or kind of tier cannot do it."""


class Unreachable(Error, ConnectionError):
    """A memory server is away."""


class TimedOut(Error, TimeoutError):
    """A memory server did not answer in time."""


class Lost(Error, RuntimeError):
    """Rows that cannot be fetched any more; the table can only be closed. If its memory server was started again, or a
    region of the fabric taken, they are in the last checkpoint alone: restore that into tables of a new space."""


class Conflict(Error, RuntimeError):
    """Something else is in the way: another checkpoint under way, changes that count from another one."""


class Corrupt(Error, RuntimeError):
    """Bytes are not those that were saved or put."""


class InputOutput(Error, OSError):
    """Reading or writing failed."""


class Failed(Error, RuntimeError):
    """Any other failure; `code` says which."""


_CLASSES = {
    ErrorCode.INVALID_ARGUMENT: InvalidArgument,
    ErrorCode.NOT_FOUND: NotFound,
    ErrorCode.NO_MEMORY: NoMemory,
    ErrorCode.NO_SPACE: NoSpace,
    ErrorCode.PERMISSION: Permission,
    ErrorCode.UNSUPPORTED: Unsupported,
    ErrorCode.UNREACHABLE: Unreachable,
    ErrorCode.CONFLICT: Conflict,
    ErrorCode.TIMED_OUT: TimedOut,
    ErrorCode.CORRUPT: Corrupt,
    ErrorCode.LOST: Lost,
    ErrorCode.IO: InputOutput,
}


def _made(kind, code, os_error, text):
    error = kind(text)
    error.code = ErrorCode(code)
    error.os_error = os_error
    return error


def _of_code(code, os_error, text):
    return _made(_CLASSES.get(code, Failed), code, os_error, text)


def _of_index(code, os_error, text):
    return _made(BadId, code, os_error, text)


def _of_use(code, os_error, text):
    return _made(Unusable, code, os_error, text)
