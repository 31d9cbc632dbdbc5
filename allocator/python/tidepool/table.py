# SPDX-License-Identifier: Apache-2.0
"""Embedding tables: rows of numbers that are looked up, pooled and trained in batches."""

import dataclasses
import typing

from . import _core
from ._arguments import array, initializer, is_part, optional_array, real, size, whole, word
from .errors import InvalidArgument
from .space import Space, _least_of_part

_STEP_FIELDS = ("lr", "momentum", "betas", "eps", "weight_decay")


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a table did since it was made; rows, but for those in bytes.

    Rows looked up = hits + in_place + fetched + (rows that one call met twice while it fetched them)."""

    lookups: int
    hits: int  # in DRAM
    in_place: int  # read where they are, in a direct tier
    fetched: int  # a call had to wait for them
    prefetched: int  # read ahead of a call
    inserted: int  # rows of hashed ids that came into being
    removed: int  # rows of hashed ids that were given up
    evictions: int
    written_back: int
    steps: int  # of the optimizer
    dram_bytes: int  # rows, metadata and buffers in local memory
    metadata_bytes: int
    unwritten: int = 0  # read from a fetch tier, but not asked for: never written there, made from first values

    @property
    def hit_rate(self):
        """Share of rows looked up that were in DRAM; 0 before the first."""
        return self.hits / self.lookups if self.lookups else 0.0


class Token:
    """A batch that was announced by Table.prefetch(). Its rows stay in DRAM until done() is called, or the token is
    no longer referred to. Tokens of one table end in the order in which they were made: the end of one is that of
    those before it."""

    __slots__ = ("_table", "_number")

    def __init__(self, table, number):
        self._table = table
        self._number = number

    @property
    def finished(self):
        """Whether done() was called."""
        return self._table is None

    def done(self):
        """The batch was used for the last time. Idempotent; does nothing to a closed table."""
        table, self._table = self._table, None
        if table is not None:
            table._core.finished(self._number)

    def __del__(self):
        self.done()


class Table:
    """A table of `rows` x `dim` numbers.

    space      tidepool.Space
    name       for errors and logs
    rows       of hashed ids: at most so many
    dim        numbers a row, 1..4096
    dtype      "float32", "float16", "bfloat16", "int8" (with a scale a row); results and gradients are float32
    ids        "dense": ids are row numbers, 0..rows-1. "hashed": any int64; a row comes into being when its id is
               first looked up, updated, prefetched or written
    optimizer  "sgd", "momentum", "adagrad", "rowwise_adagrad", "adam": its state is with the rows, whichever tier
    lr, momentum, betas, eps, weight_decay
               as in torch.optim.SGD, Adagrad and SparseAdam. momentum: 0.9 if the optimizer is "momentum". eps:
               1e-10 for "adagrad", otherwise 1e-8
    init       what rows begin with: "zero", ("uniform", low, high[, seed]), ("normal", mean, deviation[, seed]): the
               same in every tier, a function of seed and id alone
    track      of hashed ids, what expire() goes by: "last_use" (four bytes a row), "uses" (two), or both of them
    admit_after
               of hashed ids: how many times an id must be looked up, by calls that may insert, before it gets a row;
               up to 255. Until then it reads as its row would begin, its gradients are dropped, and prefetch()
               passes it over; write() gives it a row at once
    remembered_ids
               how many ids without a row are remembered for that: one is forgotten if at least this many others are
               seen before it is seen again. Up to 31 bytes each; None: a quarter of the rows
    tier       0: local memory; 1..: the far tiers of the space
    dram       local memory for hot rows of a far tier and what is known of them. None: a share of the space's, which
               follows what the table gains by it; see Space. Or of its own: bytes, "256M", or "10%" of the table (of a
               small one enough for 64 rows). It includes three bits a row that the first checkpoint takes

    Results are the same, bit for bit, whatever tier, dram and threads. Thread-safe: calls on a table take turns, and
    release the GIL; arrays given to a call must not be changed before it ends. A call that fails on its arguments has
    changed nothing. Belongs to the process that made it: tidepool.Unusable (a RuntimeError) in any other, and after
    close(). Raises InvalidArgument (ValueError), NotFound (no such tier), NoSpace (the tier is full, or the space's
    dram does not hold one table more; the text says what would), NoMemory, Unreachable, TimedOut.
    """

    def __init__(
        self,
        space,
        name,
        rows,
        dim,
        dtype="float32",
        ids="dense",
        optimizer="sgd",
        lr=0.01,
        momentum=None,
        betas=(0.9, 0.999),
        eps=None,
        weight_decay=0.0,
        init="zero",
        tier=0,
        dram=None,
        track=(),
        admit_after=1,
        remembered_ids=None,
    ):
        if not isinstance(space, Space):
            raise TypeError(f"space: a tidepool.Space is needed, not {type(space).__name__}")
        if not isinstance(name, str):
            raise TypeError(f"name: a text is needed, not {type(name).__name__}")
        options = _core.TableOptions()
        options.name = name
        options.rows = whole(rows, "rows", 1, 2**48)
        options.ids = word(ids, "ids", _core.IdKind)
        kind = word(optimizer, "optimizer", _core.Optimizer)
        element = word(dtype, "dtype", _core.ElementType)
        self._name, self._dim, self._rows = name, whole(dim, "dim", 1, 4096), options.rows
        options.format = _core.RowFormat(element, kind, self._dim)
        options.initializer = initializer(init)
        self._optimizer = optimizer
        self._settings = {
            "lr": lr,
            "momentum": (0.9 if optimizer == "momentum" else 0.0) if momentum is None else momentum,
            "betas": betas,
            "eps": (1e-10 if optimizer == "adagrad" else 1e-8) if eps is None else eps,
            "weight_decay": weight_decay,
        }
        options.step = _step(self._settings)
        options.track = _tracked(track)
        options.admit_after = whole(admit_after, "admit_after", 1, 255)
        options.remembered_ids = 0 if remembered_ids is None else whole(remembered_ids, "remembered_ids", 1, 2**32 - 2)
        self._space, self._tier = space, whole(tier, "tier", 0, 2**31)
        self._dtype, self._ids = dtype, ids
        self._shares = dram is None and self._tier > 0
        options.dram_bytes = 0 if dram is None else _own_dram(dram, options, self._tier, space)
        self._share = None  # the space's number for it, if it shares
        self._core = space._create_table(self, options, self._tier, self._shares)
        space._tables.add(self)

    # What it was made with.
    @property
    def name(self):
        """For errors and logs."""
        return self._name

    @property
    def dim(self):
        """Numbers a row."""
        return self._dim

    @property
    def capacity(self):
        """Rows that it can have."""
        return self._rows

    @property
    def space(self):
        """Its tidepool.Space."""
        return self._space

    @property
    def tier(self):
        """0 for local memory, else the number of the far tier."""
        return self._tier

    @property
    def shares_dram(self):
        """Whether its local memory is a share of the space's: it is in a far tier, and was given no dram."""
        return self._shares

    @property
    def dram(self):
        """Bytes of local memory that it is held to now; 0 in local memory. Raises Unusable."""
        return self._core.dram()

    @property
    def dtype(self):
        """Type of the numbers: a word such as "float32"."""
        return self._dtype

    @property
    def ids(self):
        """ "dense" or "hashed"."""
        return self._ids

    @property
    def optimizer(self):
        """A word such as "sgd"."""
        return self._optimizer

    @property
    def closed(self):
        """Whether close() was called."""
        return self._core.closed

    def __len__(self):
        """Rows that exist: all of a dense table."""
        return self._core.rows()

    def known_ids(self):
        """The hashed ids that have rows: int64 (len(table),), in the order in which they got them, but for those that
        got the row of an id that was removed. read() of them gives all rows. Raises TypeError for a table with dense
        ids, whose ids are the numbers of its rows."""
        self._check_hashed("known_ids")
        return self._core.known_ids()

    def remove_ids(self, ids):
        """Takes hashed ids, int64 (n,), out of the table; returns how many of them had rows, which later ids get.
        What they had learned and their optimizer's state are gone: used again, such an id is as a new one. Ids without
        a row are passed over. A checkpoint that is being taken holds what there was when it began; later ones what is
        left. Batches that were announced and name such an id are used as any others, but not read ahead any more.
        Raises TypeError for a table with dense ids; Unreachable, TimedOut, Lost."""
        self._check_hashed("remove_ids")
        return self._core.remove_ids(array(ids, "ids"))

    def expire(self, unused_for=None, used_fewer_than=None):
        """Removes, as remove_ids() does, the ids whose rows were not used in the last `unused_for` steps of the table,
        or were used fewer than `used_fewer_than` times since they got their row (counted up to 65,535); where both are
        given, those of which both are true. A row is used when it changes: by a step, once however often it occurs in
        the batch, and each time that it is written. Returns how many went. Other threads get their turn in between.
        Raises TypeError for a table with dense ids; InvalidArgument if neither is given, or what `track` left out;
        otherwise as remove_ids()."""
        self._check_hashed("expire")
        steps = 0 if unused_for is None else whole(unused_for, "unused_for", 1, 2**63)
        times = 0 if used_fewer_than is None else whole(used_fewer_than, "used_fewer_than", 1, 2**63)
        return self._core.expire(steps, times)

    def _check_hashed(self, call):
        if self._ids == "dense":
            raise TypeError(f"{call}: table {self._name} has dense ids, 0 to {self._rows - 1}")

    def bag(self, ids, offsets, weights=None, mode="sum", out=None, insert=True):
        """Pools rows: bag b is the sum, or the mean, of the rows ids[offsets[b]] .. ids[offsets[b + 1] - 1].

        ids      int64 (n,)
        offsets  int64 (bags + 1,): begins with 0, never decreases, ends with n
        weights  float32 (n,), multiplied with the rows; None: all 1. A mean divides by the number of rows
        out      float32 (bags, dim) to write to, rows may have gaps between them; None: a new array
        insert   False: hashed ids without a row give what their row would begin with, and get none. The result is the
                 same, and a full table is no error: for evaluation and serving

        NumPy arrays, or torch tensors in CPU memory; none is copied. Returns `out` as an array; empty bags are zeros.
        Raises TypeError (type of an array), ValueError (shape, layout, offsets), BadId (an IndexError), NoSpace (a
        hashed table is full), Unreachable, TimedOut and Lost (the result is undefined then).
        """
        return bags([(self, ids, offsets, weights, mode, out, insert)])[0]

    def update(self, ids, offsets, gradients, weights=None, mode="sum"):
        """One step of the optimizer with the gradients of bag()'s results, float32 (bags, dim). The gradients of all
        look-ups of a row are added up first: a row takes one step, however often it occurs. Errors as those of bag();
        after Unreachable, TimedOut or Lost some rows may have taken the step, and the table can only be closed."""
        updates([(self, ids, offsets, gradients, weights, mode)])

    def read(self, ids, out=None):
        """The rows of the ids, float32 (n, dim). NotFound (a LookupError) for a hashed id without a row: reading
        brings none into being. Errors otherwise as those of bag()."""
        return self._core.read(array(ids, "ids"), optional_array(out, "out"))

    def write(self, ids, values):
        """Sets rows to `values`, float32 (n, dim); the optimizer's state of these rows begins anew. Errors as those
        of bag()."""
        self._core.write(array(ids, "ids"), array(values, "values"))

    def prefetch(self, ids):
        """Announces a batch: rows that are far are brought in while the caller goes on. Returns a Token; call its
        done() after the batch was used. Batches are to be used in the order in which they were announced. NoSpace
        when too many are announced and not done; otherwise errors as those of bag()."""
        return prefetches([(self, ids)])[0]

    def drop_announced(self):
        """All batches that were announced so far are over, used or not: their rows may leave, and their tokens' done()
        does nothing any more. A loop that was broken off calls it before restore(). Those that are used all the same find
        their rows as any other batch does. Raises Unusable."""
        self._core.drop_announced()

    def set_step(self, **settings):
        """Changes what the next steps use: any of lr, momentum, betas, eps, weight_decay. The count of steps, which
        Adam corrects with, goes on."""
        unknown = set(settings) - set(_STEP_FIELDS)
        if unknown:
            raise TypeError(f"set_step: no setting called {', '.join(sorted(unknown))}")
        changed = {**self._settings, **settings}
        self._core.set_step(_step(changed))
        self._settings = changed

    def set_lr(self, lr):
        """Changes the learning rate of the next steps."""
        self.set_step(lr=lr)

    @property
    def lr(self):
        """The learning rate."""
        return self._settings["lr"]

    def counts(self):
        """What the table did: Counts."""
        return Counts(**self._core.counts())

    def checkpoint(self, directory, kind="full", **options):
        """Saves the rows and the optimizer's state as they are now, while training goes on. Returns a Checkpoint:
        tidepool.save(directory, [self], kind, ...), which has the options and errors. Several tables that belong
        together are saved together, with one save()."""
        from .checkpoint import save

        return save(directory, [self], kind, **options)

    def close(self):
        """Gives its memory back, near and far. Calls under way end first. Idempotent."""
        self._core.close()
        self._space._table_closed(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        state = ", closed" if self.closed else ""
        return f"tidepool.Table({self._name!r}, {self._rows} x {self._dim} {self._dtype}, tier {self._tier}{state})"

    def __reduce__(self):
        raise TypeError(f"table {self._name} belongs to its process and cannot be copied or pickled")


class BagCall(typing.NamedTuple):
    """One table's part of bags(): the arguments of Table.bag()."""

    table: Table
    ids: typing.Any
    offsets: typing.Any
    weights: typing.Any = None
    mode: str = "sum"
    out: typing.Any = None
    insert: bool = True


class UpdateCall(typing.NamedTuple):
    """One table's part of updates(): the arguments of Table.update()."""

    table: Table
    ids: typing.Any
    offsets: typing.Any
    gradients: typing.Any
    weights: typing.Any = None
    mode: str = "sum"


def _step(settings):
    step = _core.Step()
    step.learning_rate = real(settings["lr"], "lr", 0)
    step.momentum = real(settings["momentum"], "momentum", 0)
    betas = settings["betas"]
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError("betas: two numbers are needed")
    step.beta1, step.beta2 = (real(beta, "betas", 0, 1) for beta in betas)
    step.epsilon = real(settings["eps"], "eps", 0)
    step.weight_decay = real(settings["weight_decay"], "weight_decay", 0)
    return step


def _tracked(track):
    bits = {"last_use": 1, "uses": 2}
    words = (track,) if isinstance(track, str) else tuple(track)
    for each in words:
        if each not in bits:
            raise InvalidArgument(f"track: {each!r} is none of {', '.join(bits)}")
    return sum(bits[each] for each in set(words))


def _own_dram(dram, options, tier, space):
    """Bytes of a table that shares none. Of 0 the core would think that it does."""
    budget = size(dram, "dram", options.rows * options.format.row_bytes)
    if is_part(dram):
        return max(budget, _least_of_part(space._core.least_dram(options, tier), options))
    return max(budget, 1)


def _core_of(table):
    if not isinstance(table, Table):
        raise TypeError(f"table: a tidepool.Table is needed, not {type(table).__name__}")
    return table._core


def bags(calls):
    """Table.bag() for several tables of one space in one call, which is quicker than one after the other: their work
    is shared out over all threads, and requests to memory servers are under way together.

    calls  tuples (table, ids, offsets[, weights[, mode[, out[, insert]]]]), such as BagCall. A table may occur more than once.
    Returns a list of arrays, in the order of the calls. Errors as those of Table.bag(); ValueError if the tables are
    of several spaces. When arguments of any part are wrong, none was done."""
    parts = []
    for call in calls:
        if not isinstance(call, BagCall):
            call = BagCall(*call)
        parts.append(
            (
                _core_of(call.table),
                array(call.ids, "ids"),
                array(call.offsets, "offsets"),
                optional_array(call.weights, "weights"),
                word(call.mode, "mode", _core.Pooling),
                optional_array(call.out, "out"),
                bool(call.insert),
            )
        )
    return _core.bags(parts)


def updates(calls):
    """Table.update() for several tables of one space in one call.

    calls  tuples (table, ids, offsets, gradients[, weights[, mode]]), such as UpdateCall. A table that occurs twice
    takes two steps. Errors as those of Table.update(), and ValueError if the tables are of several spaces."""
    parts = []
    for call in calls:
        if not isinstance(call, UpdateCall):
            call = UpdateCall(*call)
        parts.append(
            (
                _core_of(call.table),
                array(call.ids, "ids"),
                array(call.offsets, "offsets"),
                optional_array(call.weights, "weights"),
                word(call.mode, "mode", _core.Pooling),
                array(call.gradients, "gradients"),
            )
        )
    _core.updates(parts)


def prefetches(calls):
    """Table.prefetch() for several tables of one space in one call.

    calls  tuples (table, ids)
    Returns a list of Tokens, in the order of the calls. Errors as those of Table.prefetch(), and ValueError if the
    tables are of several spaces; the other tables may have announced their part then, until their next done()."""
    calls = list(calls)
    numbers = _core.prefetches([(_core_of(table), array(ids, "ids")) for table, ids in calls])
    return [Token(table, number) for (table, _), number in zip(calls, numbers)]
