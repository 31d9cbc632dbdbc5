# SPDX-License-Identifier: Apache-2.0
"""Tensors by name in a far tier: weights and activations that local memory has no room for, put there and got back
while the program goes on."""

import asyncio
import atexit
import dataclasses
import sys
import weakref

import numpy

from . import _core
from ._arguments import array, size, whole
from .errors import InvalidArgument, NotFound
from .space import Space

_KINDS = "biufcmMSUV"  # NumPy's kinds of types whose bytes are all there is to them
_open_stores = weakref.WeakSet()


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """What a stored tensor is: its shape, its type as a word ("float32", "bfloat16", or NumPy's text for others, such
    as ">f4"), the library that it came from ("numpy" or "torch") and its bytes."""

    shape: tuple
    dtype: str
    library: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class TensorCounts:
    """What there is in a store now, and what it did since it was made."""

    tensors: int  # now
    stored_bytes: int  # now, in tensors that have a name
    used_bytes: int  # now, of the tier: whole pages; values that are being put or replaced counted
    held_bytes: int  # now, of the tier: what its other users cannot have; trim() gives the free part back
    under_way: int  # puts and gets now
    puts: int
    gets: int
    failures: int
    put_bytes: int
    got_bytes: int


class TensorFuture:
    """A put or a get under way. `result()` waits for it, `await` lets an asyncio program go on meanwhile. Dropping it
    does not stop it. Thread-safe. Belongs to the process that began it: tidepool.Unusable in a forked child."""

    __slots__ = ("_transfer", "_value", "_store", "__weakref__")

    def __init__(self, transfer, value, store):
        self._transfer = transfer
        self._value = value
        self._store = store

    def done(self):
        """Whether it is over, well or not. Does not block."""
        return self._transfer.done()

    def result(self, timeout=None):
        """None of a put; of a get the tensor. Blocks for at most `timeout` seconds (None: no limit).

        Raises TimeoutError when that was not enough (the transfer goes on), Unreachable, TimedOut, Lost (the memory
        server is away), or Corrupt (a checksum is wrong). After an error of a put the name has the value that it had
        before, or none; what is in `out` of a get is not to be used."""
        self._wait(timeout)
        self._transfer.check()
        return self._value

    def exception(self, timeout=None):
        """The error that it ended with, or None. Otherwise as result()."""
        self._wait(timeout)
        try:
            self._transfer.check()
        except Exception as error:
            return error
        return None

    def _wait(self, timeout):
        if not self._transfer.wait(None if timeout is None else max(0.0, float(timeout))):
            raise TimeoutError(f"the transfer was not over after {timeout} seconds; it goes on")

    def __await__(self):
        if not self._transfer.done():
            yield from self._store._waiting_in(asyncio.get_running_loop()).wait_for(self._transfer).__await__()
        self._transfer.check()
        return self._value

    def __reduce__(self):
        raise TypeError("a tidepool.TensorFuture belongs to its process and cannot be copied or pickled")


class _LoopWaiters:
    """Those of one event loop that wait: one descriptor for all, which the loop watches while there are any."""

    def __init__(self, loop):
        self._loop = weakref.ref(loop)
        self._queue = _core.DoneQueue()
        self._waiting = {}
        self._next = 0

    def wait_for(self, transfer):
        loop = self._loop()
        future, token = loop.create_future(), self._next
        self._next += 1
        if not self._waiting:
            loop.add_reader(self._queue.fileno(), self._ready)
        self._waiting[token] = future
        transfer.tell(self._queue, token)
        return self._settled(future, token)

    async def _settled(self, future, token):
        try:
            await future
        finally:  # cancelled, perhaps: the transfer goes on
            self._forget(token)

    def _forget(self, token):
        if self._waiting.pop(token, None) is not None and not self._waiting:
            self._loop().remove_reader(self._queue.fileno())

    def _ready(self):
        for token in self._queue.take():
            future = self._waiting.get(token)
            if future is not None and not future.done():
                future.set_result(None)


class TensorStore:
    """Tensors by name in one far tier of a space.

        store = space.tensors()
        put = store.put_async("layer 3", activations)      # goes on; do not change activations before put.result()
        ...
        got = store.get_async("layer 3", out=activations)  # or await it
        got.result()

    space      whose tier it is; tables of the space can be in the same
    tier       the number of the far tier, from 1
    limit      of the tier, at most: bytes, "4G", or None for all of it; a direct tier is given out in steps of 2 MiB. A put
               over a name needs room for both values, until it is over
    threads    that copy to and from a direct tier; a memory server has one connection with many requests under way
    checksums  True: bytes are check-summed (XXH3) when they are put, and checked when they are got, which is slower

    Tensors are NumPy arrays, torch tensors in CPU memory, or anything with DLPack or the buffer protocol, of any shape
    and any type but objects, in C order without gaps between their elements. Their bytes go straight from and to their memory,
    without another copy, and come back exactly. Values are whole: a get has what the name had when it was begun, a put
    takes effect at its end, of several the one that was begun last stays. A value that was got stays, even if it is
    replaced or deleted meanwhile.

    Thread-safe; the GIL is not held while bytes move. A context manager: leaving it closes the store. Belongs to the
    process that made it: tidepool.Unusable in any other, and after close().
    Raises NotFound (no such tier), Unreachable, TimedOut, InvalidArgument (ValueError).
    """

    def __init__(self, space, tier=1, limit=None, threads=1, checksums=False):
        if not isinstance(space, Space):
            raise TypeError(f"space: a tidepool.Space is needed, not {type(space).__name__}")
        if not isinstance(checksums, bool):
            raise TypeError(f"checksums: True or False is needed, not {type(checksums).__name__}")
        bound = 0
        if limit is not None:
            bound = size(limit, "limit", 0)
            if bound == 0:
                raise InvalidArgument("limit: 0 bytes leave no room for any tensor; None is no limit")
        kinds = _core.TensorChecksums
        self._tier = whole(tier, "tier", 1, 2**31)
        self._loops = weakref.WeakKeyDictionary()
        self._core = _core.TensorStore(
            space._core,
            self._tier,
            bound,
            whole(threads, "threads", 1, 256),
            kinds.every_piece if checksums else kinds.none,
        )
        space._tables.add(self)  # which closes it
        _open_stores.add(self)

    @property
    def tier(self):
        """The number of its far tier."""
        return self._tier

    @property
    def closed(self):
        """Whether close() was called."""
        return self._core.closed

    def put_async(self, name, tensor):
        """Begins to copy `tensor` to far memory and returns a TensorFuture at once. Its memory must not be changed
        before that is over. Raises at once: TypeError (no tensor, or of objects), ValueError (not in C order,
        gaps between its elements), NoSpace (the tier or `limit` has no room for it beside what is there), Unusable."""
        library, word, shape = _described(tensor, "tensor")
        description = f"{library} {word} {','.join(map(str, shape))}"
        return TensorFuture(self._core.put(_name(name), description, _bytes_of(tensor, "tensor")), None, self)

    def get_async(self, name, out=None):
        """Begins to copy a tensor from far memory and returns a TensorFuture at once. `out`: an array or a tensor of
        its shape and type without gaps, which gets the bytes; None: a new one, of the library that the tensor was put
        with. Raises at once: NotFound (a LookupError), ValueError (the shape of `out`, gaps, read-only), TypeError
        (the type of `out`), Unusable. autograd is not told that `out` changes."""
        value = self._core.find(_name(name))
        info = _info(value)
        if out is None:
            out = _empty(info)
        else:
            _check_out(out, info)
        return TensorFuture(value.get(_bytes_of(out, "out", writing=True)), out, self)

    def put(self, name, tensor, timeout=None):
        """put_async(), and waits for it: see TensorFuture.result()."""
        self.put_async(name, tensor).result(timeout)

    def get(self, name, out=None, timeout=None):
        """get_async(), and waits for it: the tensor; see TensorFuture.result()."""
        return self.get_async(name, out).result(timeout)

    def delete(self, name):
        """The name has no tensor any more. Gets under way go on, puts of the name that are under way come to nothing.
        The memory is used again once nobody reads it. Raises NotFound."""
        self._core.remove(_name(name))

    def info(self, name):
        """What the tensor is: TensorInfo. Raises NotFound."""
        return _info(self._core.find(_name(name)))

    def names(self):
        """The names that have a tensor now, in alphabetical order."""
        return self._core.names()

    def __contains__(self, name):
        try:
            self._core.find(_name(name))
        except NotFound:
            return False
        return True

    def __len__(self):
        return self._core.counts()["tensors"]

    def __iter__(self):
        return iter(self.names())

    def counts(self):
        """What it has and did: TensorCounts."""
        return TensorCounts(**self._core.counts())

    def trim(self):
        """Gives memory of the tier that no tensor uses back to the tier's other users. Without it the memory is kept
        for the next puts, which are quicker for it."""
        self._core.trim()

    def close(self):
        """Waits for what is under way and gives all memory back: the tensors are gone. Idempotent."""
        self._core.close()

    def _waiting_in(self, loop):
        if loop not in self._loops:
            self._loops[loop] = _LoopWaiters(loop)
        return self._loops[loop]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"tidepool.TensorStore(tier {self._tier}{', closed' if self.closed else ''})"

    def __reduce__(self):
        raise TypeError("a tidepool.TensorStore belongs to its process and cannot be copied or pickled")


def _close_all():
    # Threads that copy must not outlive the memory that the interpreter frees at its end.
    for store in list(_open_stores):
        store.close()


atexit.register(_close_all)


def _name(name):
    if not isinstance(name, str):
        raise TypeError(f"name: a text is needed, not {type(name).__name__}")
    return name


def _is_torch(value):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _described(value, argument):
    """(library, word of the type, shape); raises for what cannot be stored."""
    if _is_torch(value):
        if value.device.type != "cpu" or str(value.layout) != "torch.strided" or value.is_quantized:
            raise TypeError(
                f"{argument}: a dense tensor in CPU memory is needed, not one of {value.layout} on {value.device}"
            )
        return "torch", str(value.dtype).partition(".")[2], tuple(value.shape)
    values = array(value, argument)
    kind = values.dtype
    if kind.kind not in _KINDS or kind.names is not None or kind.itemsize == 0:
        raise TypeError(f"{argument}: numbers, times, texts or bytes are needed, not {kind}")
    plain = kind.isnative and numpy.dtype(kind.name) == kind if kind.kind in "biufc" else False
    return "numpy", kind.name if plain else kind.str, values.shape


def _bytes_of(value, argument, writing=False):
    """The value's memory as an array of bytes."""
    if _is_torch(value):
        import torch

        value = value.detach()
        if not value.is_contiguous() or value.is_conj() or value.is_neg():
            raise InvalidArgument(f"{argument}: the tensor is not contiguous (in C order, without gaps); contiguous() makes one that is")
        return value.reshape(-1).view(torch.uint8).numpy()
    values = array(value, argument)
    if not values.flags.c_contiguous:
        raise InvalidArgument(
            f"{argument}: the array is not in C order without gaps; numpy.ascontiguousarray() makes one that is"
        )
    if writing and not values.flags.writeable:
        raise InvalidArgument(f"{argument}: the array is read-only")
    return values.reshape(-1).view(numpy.uint8)


def _info(value):
    library, word, shape = value.description.split(" ")
    return TensorInfo(tuple(int(side) for side in shape.split(",") if side), word, library, value.bytes)


def _empty(info):
    if info.library == "torch":
        import torch

        return torch.empty(info.shape, dtype=getattr(torch, info.dtype), device="cpu")
    return numpy.empty(info.shape, numpy.dtype(info.dtype))


def _check_out(out, info):
    _, word, shape = _described(out, "out")
    if word != info.dtype:
        raise TypeError(f"out: {info.dtype} is needed, not {word}")
    if tuple(shape) != info.shape:
        raise InvalidArgument(f"out: the shape {info.shape} is needed, not {tuple(shape)}")
