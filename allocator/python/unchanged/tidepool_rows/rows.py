# SPDX-License-Identifier: Apache-2.0
"""Rows: a table with tensors for what goes in and out; and what may be copied out of it at all."""

import sys

import torch

from .library import ELEMENTS, Table, distinct, say

_PIECE_BYTES = 4 << 20
# torch's normal_() makes numbers in groups of sixteen: pieces of whole groups come out as one fill does.
_GROUP = 16
_LOUD_BYTES = 1 << 20
DTYPES = {getattr(torch, element): element for element in ELEMENTS}


on_look_up = None  # where rows are read ahead: told the table and the ids of the program's look-ups


def size_text(count):
    """Bytes as people write them."""
    return f"{count / (1 << 20):.0f} MiB" if count >= 1 << 20 else f"{count} bytes"


def _movable(tensor):
    """Whether a dense tensor can become rows when nobody else has it."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype in DTYPES
        and tensor._base is None
        and tensor.grad_fn is None
        and not tensor.is_shared()
    )


def _available():
    """Bytes that the machine can still give out; None where nobody knows."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return None


def may_copy(why, rows, dim, size):
    """Says so if an operation called `why` takes a copy of `size` bytes. Errors: RuntimeError if it does not fit
    into memory."""
    if size <= _LOUD_BYTES:
        return
    available = _available()
    if available is not None and size > available:
        raise RuntimeError(
            f"tidepool: {why} on {rows} x {dim} needs a copy of {size_text(size)}, and there are "
            f"{size_text(available)} of memory; run with --rows off, or use rows of it alone"
        )
    say(f"{why} on {rows} x {dim} is worked out on a copy of {size_text(size)}")


def distinct_ids(ids):
    """(each id once, in rising order; where each of `ids` is among these)."""
    ids, count = ids.contiguous(), ids.numel()
    once, positions = torch.empty_like(ids), torch.empty_like(ids)
    found = distinct(ids.data_ptr(), count, once.data_ptr(), positions.data_ptr())
    return once[:found], positions


class Rows:
    """count x dim numbers in a table of their own. Thread-safe as Table is.

    Rows that are `given` as a dense tensor, or become one, stay that tensor as long as the program has it,
    too: what is written to one is seen in the other. From then on they are a table. Those that wait stay a
    tensor until somebody sets `waits` to False.
    """

    def __init__(self, count, dim, constant=0.0, given=None, dtype=torch.float32, waits=False):
        """Of a `given` tensor: its dtype; else one of DTYPES."""
        self.count, self.dim, self._given, self.waits = count, dim, given, waits
        self.plain_gradients = False  # look-ups have torch's own
        self.dtype = dtype if given is None else given.dtype
        self.stays_dense = given is not None and not (
            _movable(given) and given.shape == (count, dim)
        )
        if given is not None:
            return
        # The table begins as a constant where it can be said to; else it is filled.
        plain = constant - constant == 0 and str(constant) != "-0.0"
        self._table = self._new_table(float(constant) if plain else 0.0)
        if not plain:
            self.refill(0, count, lambda piece: piece.fill_(constant))

    def _new_table(self, constant=0.0):
        return Table(self.count, self.dim, DTYPES[self.dtype], constant)

    def _empty(self, count):
        return torch.empty((count, self.dim), dtype=self.dtype)

    @property
    def in_table(self):
        """Whether they are a table now."""
        return self.become_table()

    def become_table(self, keep=True):
        """Makes them a table if nobody else has the dense tensor that they are; returns whether they are
        one now. `keep`: with the same numbers; else the caller overwrites them all."""
        if self._given is None:
            return True
        if self.stays_dense or self.waits or self._uses() > _USES_ALONE:
            return False
        try:
            self._table = self._new_table()
            if keep:
                self._load(self._given.detach())
        except (RuntimeError, OSError) as error:
            say(f"a weight of {self.count} x {self.dim} stays in pages: {error}")
            self.stays_dense = True
            return False
        self._given = None
        return True

    def become_dense(self, why):
        """Makes them a dense tensor, for an operation called `why` that hands out its memory; returns the
        tensor. They are a table again once nobody else has it. Errors: as dense()."""
        if self._given is None:
            self._given = self.dense(0, self.count, why)
            del self._table
        return self._given

    @property
    def size(self):
        """Bytes of all of them as a dense tensor."""
        return self.count * self.dim * self._empty(0).element_size()

    def _uses(self):
        return sys.getrefcount(self._given)

    @property
    def given(self):
        """The dense tensor that they still are, without its history."""
        return self._given.detach()

    def outline(self):
        """A tensor without numbers that is all of them otherwise."""
        if self._given is not None:
            return torch.empty_like(self._given.detach(), device="meta")
        return torch.empty((self.count, self.dim), dtype=self.dtype, device="meta")

    def look_up(self, ids):
        """As gather(), for the program's own look-ups."""
        self.note_look_up(ids)
        return self.gather(ids)

    def note_look_up(self, ids):
        """The program looks these ids up, as gather() takes them."""
        if on_look_up is not None and self._given is None:
            on_look_up(self._table, ids)

    def gather(self, ids):
        """The rows of a contiguous tensor of int64, as a new tensor. Errors: IndexError."""
        if self._given is not None:
            return self.given.index_select(0, ids)
        count = ids.numel()
        found = torch.empty((count, self.dim), dtype=torch.float32)
        self._table.gather(ids.data_ptr(), count, found.data_ptr())
        return found.to(self.dtype)

    def scatter(self, ids, values):
        """Overwrites the rows, all of which are different."""
        if self._given is not None:
            self.given.index_copy_(0, ids, values)
            return
        values = values.to(torch.float32).contiguous()
        self._table.scatter(ids.data_ptr(), ids.numel(), values.data_ptr())

    def read(self, first, count, out=None):
        """Rows side by side, into `out` if it is given; does not make them hot."""
        found = out
        if out is None or self.dtype != torch.float32:
            found = torch.empty((count, self.dim), dtype=torch.float32)
        ids = torch.arange(first, first + count)
        self._table.read(ids.data_ptr(), count, found.data_ptr())
        if out is None:
            return found.to(self.dtype)
        return out if found is out else out[:count].copy_(found)

    def write(self, first, values):
        values = values.to(torch.float32).contiguous()
        ids = torch.arange(first, first + len(values))
        self._table.write(ids.data_ptr(), len(values), values.data_ptr())

    def pieces(self, first, count):
        """(first, count) of pieces of a few MiB, none of which but all of it is shorter than a group."""
        step = max(_PIECE_BYTES // (4 * self.dim) // _GROUP, 1) * _GROUP
        end = first + count
        while first < end:
            here = step if end - first >= step + _GROUP else end - first
            yield first, here
            first += here

    def refill(self, first, count, fill):
        """Overwrites rows by what fill(piece) leaves in a piece whose contents are undefined."""
        for at, here in self.pieces(first, count):
            piece = self._empty(here)
            fill(piece)
            self.write(at, piece)

    def _load(self, values):
        """Gives rows of a new table, which are zeros, a dense tensor's values."""
        for at, here in self.pieces(0, self.count):
            piece = values[at : at + here].contiguous()
            bits = torch.int32 if piece.element_size() == 4 else torch.int16
            if piece.view(bits).any():  # -0.0 is none of the zeros that are there
                self.write(at, piece)

    def dense(self, first, count, why):
        """A copy for the operation called `why`. Errors: RuntimeError if it does not fit into memory."""
        may_copy(why, self.count, self.dim, count * self.dim * self._empty(0).element_size())
        out = self._empty(count)
        for at, here in self.pieces(first, count):
            self.read(at, here, out[at - first :])
        return out

    def copy(self):
        """The same rows in a table of their own."""
        twin = Rows(self.count, self.dim, dtype=self.dtype)
        for at, here in self.pieces(0, self.count):
            twin.write(at, self.read(at, here))
        return twin


def _uses_alone():
    """Of a dense tensor that nobody else has. Interpreters count differently."""
    probe = Rows.__new__(Rows)
    probe._given = object()
    return probe._uses()


_USES_ALONE = _uses_alone()
