# SPDX-License-Identifier: Apache-2.0
"""A drop-in for torch.nn.EmbeddingBag whose rows are in a tidepool.Table."""

import collections
import contextlib
import itertools
import threading

import numpy
import torch

from ..space import Space
from ..table import Table
from ._function import Lookup, pool
from ._inputs import Offsets, bags_of, ids_of, weights_of
from ._weight import Weight, refused

_TABLE_OPTIONS = (
    ("ids", "optimizer", "lr", "momentum", "betas", "eps", "weight_decay")
    + ("track", "admit_after", "remembered_ids")  # of hashed ids
)
_PIECE = 65536  # rows that state_dict() copies at a time
_numbers = itertools.count()
_default = None
_default_lock = threading.Lock()
_states = threading.local()


@contextlib.contextmanager
def without_rows():
    """Within it state_dict() and load_state_dict(), of this thread, leave the rows of tables out."""
    _states.without_rows = True
    try:
        yield
    finally:
        _states.without_rows = False


def default_space():
    """The space of modules that are given none: local memory alone, as many threads as processors."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Space()
        return _default


def _checked_for_torch(max_norm, scale_grad_by_freq, sparse, padding_idx, mode, device):
    for name, value in (("max_norm", max_norm), ("padding_idx", padding_idx)):
        if value is not None:
            raise NotImplementedError(f"{name}: tables do not have it")
    if scale_grad_by_freq:
        raise NotImplementedError("scale_grad_by_freq: tables do not have it")
    if not sparse:
        raise NotImplementedError("sparse: gradients of tables are sparse; there are no others")
    if device is not None and torch.device(device).type != "cpu":
        raise NotImplementedError(f"device: tables are in CPU memory, not on {device}; move the results")
    if mode not in ("sum", "mean"):
        raise NotImplementedError(f'mode: tables have "sum" and "mean", not {mode!r}')


class EmbeddingBag(torch.nn.Module):
    """torch.nn.EmbeddingBag(sparse=True) with the optimizer built in: backward() takes its step.

    num_embeddings, embedding_dim, mode ("mean", as torch's default, or "sum"), include_last_offset, _weight
        as torch.nn.EmbeddingBag. Begins with normal(0, 1), too, with a seed from torch's generator.
        max_norm, scale_grad_by_freq, padding_idx and mode "max" raise NotImplementedError.
    space, tier, dram, optimizer, lr, momentum, betas, eps, weight_decay, dtype, ids, init, name, track,
    admit_after, remembered_ids
        as tidepool.Table. space: default_space() if None; tier: 1 if the space has far tiers, else 0; dtype: of
        torch's, too. dram: None for a share of the space's, see tidepool.Space.

    What differs from torch:
    - backward() of a result takes one step with that result's gradient: there is no .grad, torch.optim has nothing to
      do for the table, and gradients of several backward() calls are not added up: each takes a step. `set_lr` sets
      the rate; requires_grad_(False) stops steps. backward() twice over one result (retain_graph) takes two.
    - Two look-ups of the table in one loss raise NotImplementedError in backward(), before a step: torch would take one
      step for both. Look their ids up at once, torch.cat([a, b]), and cut up the result.
    - weight is a copy that can be read; what would change it, or wants its gradient, raises NotImplementedError.
    - parameters() yields one parameter without elements, through which autograd finds the module: torch.optim and
      model.parameters() work as they do, and leave the table alone.
    - state_dict() has "weight", float32, as torch's: either's loads into the other. Not the optimizer's state, which
      load_state_dict() lets begin anew. Tables with hashed ids raise NotImplementedError; use table.read().
    - The table belongs to this process. DataLoader workers may be forked; they cannot look anything up.

    - Hashed ids get rows by look-ups that a step may follow. Where there is no gradient (torch.no_grad(),
      requires_grad_(False)) new ids give what their row would begin with, and get none.

    forward(input, offsets=None, per_sample_weights=None): as torch's; int64 tensors without gaps are not copied, int32
    ones are. Returns float32 (bags, dim). Thread-safe, but for prefetch(), whose order is that of the forward() calls.
    Raises what Table.bag() does; IndexError for ids that no row has.
    """

    def __init__(
        self,
        num_embeddings,
        embedding_dim,
        max_norm=None,
        norm_type=2.0,
        scale_grad_by_freq=False,
        mode="mean",
        sparse=True,
        _weight=None,
        include_last_offset=False,
        padding_idx=None,
        *,
        space=None,
        tier=None,
        dram=None,
        init=None,
        name=None,
        dtype="float32",
        device=None,
        **options,
    ):
        super().__init__()
        _checked_for_torch(max_norm, scale_grad_by_freq, sparse, padding_idx, mode, device)
        unknown = ", ".join(sorted(set(options) - set(_TABLE_OPTIONS)))
        if unknown:
            raise TypeError(f"{unknown}: no option of tables; there are {', '.join(_TABLE_OPTIONS)}")
        if space is not None and not isinstance(space, Space):
            raise TypeError(f"space: a tidepool.Space is needed, not {type(space).__name__}")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.mode = mode
        self.include_last_offset = include_last_offset
        space = default_space() if space is None else space
        if init is None:
            init = "zero" if _weight is not None else ("normal", 0.0, 1.0, _seed())
        self.table = Table(
            space,
            f"embedding{next(_numbers)}" if name is None else name,
            num_embeddings,
            embedding_dim,
            init=init,
            tier=(1 if space.far else 0) if tier is None else tier,
            dram=dram,
            dtype=str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype,
            **options,
        )
        self.anchor = torch.nn.Parameter(torch.empty(0, dtype=torch.float32, device="cpu"))
        self._regular = Offsets()
        self._ahead = collections.deque()  # (input, token) of announced batches, in order
        if _weight is not None:
            self._write(_weight)

    def forward(self, input, offsets=None, per_sample_weights=None):
        lookup = self.lookup(input, offsets, per_sample_weights)
        lookup.token = self.announced(input)
        return pool([lookup], [self])

    def lookup(self, input, offsets=None, per_sample_weights=None):
        """The arguments of forward(), checked, for EmbeddingBagCollection."""
        ids, ends = bags_of(input, offsets, self.include_last_offset, self._regular)
        weights = weights_of(per_sample_weights, input, self.mode)
        return Lookup(self.table, ids, ends, weights, self.mode)

    def prefetch(self, input, offsets=None, per_sample_weights=None):
        """Announces a batch: rows of it that are far are brought in meanwhile. Takes what forward() takes (input alone
        counts). Call forward() with the same input tensor later, in the order of the announcements; its rows stay in
        DRAM until its backward(), or until forward() where there is no gradient. An announced batch that is passed
        over is forgotten when a later one is used. NoSpace when 120 are announced and not over: results that are
        kept without torch.no_grad() keep theirs; see drop_announced()."""
        self._ahead.append((input, self.table.prefetch(ids_of(input))))

    def drop_announced(self):
        """Forgets all announced batches, those included whose results wait for a backward(), as a loop does that was
        broken off: restore() wants none. Results that are there keep their backward(). Raises Unusable."""
        self._ahead.clear()
        self.table.drop_announced()

    def announced(self, input):
        """The token of the batch of this input, if it was announced; older ones are forgotten. For forward()."""
        for at, (announced, _) in enumerate(self._ahead):
            if announced is input or (
                announced.data_ptr() == input.data_ptr() and announced.shape == input.shape
            ):
                for _ in range(at):
                    self._ahead.popleft()
                return self._ahead.popleft()[1]
        return None

    def set_lr(self, lr):
        """Changes the learning rate of the next steps."""
        self.table.set_lr(lr)

    @property
    def weight(self):
        """All rows of a table with dense ids, copied to a float32 tensor (num_embeddings, embedding_dim) that can be
        read: what would change it, or ask for its gradient, raises NotImplementedError."""
        return Weight.of(self.table, self._read, self.anchor)

    def __setattr__(self, name, value):
        if name == "weight":
            raise refused(self.table, "setting it")
        super().__setattr__(name, value)

    def _read(self):
        if self.table.ids != "dense":
            raise NotImplementedError("weight: a table with hashed ids has rows for some ids; use table.read()")
        rows = torch.empty((self.num_embeddings, self.embedding_dim), dtype=torch.float32, device="cpu")
        for first in range(0, self.num_embeddings, _PIECE):
            ids = numpy.arange(first, min(first + _PIECE, self.num_embeddings))
            self.table.read(ids, out=rows[first : first + len(ids)])
        return rows

    def _write(self, weight):
        if not isinstance(weight, torch.Tensor):
            raise TypeError(f"weight: a tensor is needed, not {type(weight).__name__}")
        weight = weight.detach()
        if tuple(weight.shape) != (self.num_embeddings, self.embedding_dim) or self.table.ids != "dense":
            raise ValueError(
                f"weight: the shape {(self.num_embeddings, self.embedding_dim)} of a table with dense ids is needed, "
                f"not {tuple(weight.shape)} for one with {self.table.ids} ids"
            )
        for first in range(0, self.num_embeddings, _PIECE):
            piece = weight[first : first + _PIECE].to("cpu", torch.float32).contiguous()
            self.table.write(numpy.arange(first, first + len(piece)), piece)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        if not getattr(_states, "without_rows", False):
            destination[prefix + "weight"] = self._read()

    def _load_from_state_dict(self, state, prefix, metadata, strict, missing, unexpected, errors):
        if getattr(_states, "without_rows", False):
            return
        key = prefix + "weight"
        if key not in state:
            if strict:
                missing.append(key)
            return
        try:
            self._write(state[key])
        except (TypeError, ValueError) as error:
            errors.append(f"{key}: {error}")
            return
        if strict:
            unexpected += [
                other for other in state if other.startswith(prefix) and other != key
            ]

    def extra_repr(self):
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}, dtype={self.table.dtype!r}, "
            f"optimizer={self.table.optimizer!r}, lr={self.table.lr}, tier={self.table.tier}"
        )


def _seed():
    return int(torch.randint(0, 2**62, (), device="cpu").item())
