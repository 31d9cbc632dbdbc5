# SPDX-License-Identifier: Apache-2.0
"""What autograd has recorded of each table: nodes of its graphs that one backward() must not get to together, since
each step is taken as soon as its gradient is there."""

import threading
import weakref

import torch

if not hasattr(torch._C, "_will_engine_execute_node"):
    raise ImportError(f"tidepool.torch: PyTorch 1.13 or a newer one is needed, not {torch.__version__}")


class _Recorded:
    """The nodes of one table, as long as a backward() may get to them. Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._nodes = []  # weak references
        self._crowded = 16

    def __len__(self):
        return len(self._nodes)

    def add(self, node):
        with self._lock:
            if len(self._nodes) >= self._crowded:
                self._nodes = [one for one in self._nodes if one() is not None]
                self._crowded = 2 * len(self._nodes) + 16
            self._nodes.append(weakref.ref(node))

    def in_pass_with(self, node):
        """Another node that the backward() which has come to this one gets to as well, or None."""
        with self._lock:
            nodes = [one() for one in self._nodes]
        nodes = [one for one in nodes if one is not None and one is not node]
        over = {id(one) for one in nodes if one.ran and _freed(one)}
        if over:  # somebody keeps old results: they are not to be looked at with every step
            with self._lock:
                self._nodes = [one for one in self._nodes if id(one()) not in over]
        there = (one for one in nodes if id(one) not in over and torch._C._will_engine_execute_node(one))
        return next(there, None)


def _freed(node):
    """Whether its graph is: no backward() can get through it again."""
    try:
        node.saved_tensors
    except RuntimeError:
        return True
    return False


_tables = weakref.WeakKeyDictionary()
_tables_lock = threading.Lock()


def recorded_of(table):
    with _tables_lock:
        return _tables.setdefault(table, _Recorded())


def record(node, tables, refusal):
    """The node, in its forward(), wants gradients of these tables. refusal(table): what to raise when a step of one of
    them is to be taken in the same backward()."""
    node.ran, node.refusal = False, refusal
    for table in tables:
        recorded_of(table).add(node)


def check_alone(node, tables):
    """In the node's backward(), before it takes steps. Raises what another node of the tables says if this pass gets
    there, too."""
    for table in tables:
        other = recorded_of(table).in_pass_with(node)
        if other is not None:
            raise other.refusal(table)
    node.ran = True
