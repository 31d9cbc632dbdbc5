# SPDX-License-Identifier: Apache-2.0
"""RowTensor: a tensor whose numbers are rows of a table. What torch does to it: operations.py."""

import torch

from .rows import Rows


def handlers():
    """(functions of ours by the names of ATen's operations, a decorator that enters one by its names)."""
    entered = {}

    def handles(*names):
        def enter(function):
            entered.update({f"aten.{name}": function for name in names})
            return function

        return enter

    return entered, handles


class View:
    """Which part of the rows a tensor is: rows first to first + count, seen through operations.

    `steps` lead from all rows to the tensor, `rest` from those rows alone; each is a function, the
    arguments after the first, keyword arguments, and which of several results.
    """

    def __init__(self, first, count, steps=(), rest=()):
        self.first, self.count, self.steps, self.rest = first, count, steps, rest

    @staticmethod
    def follow(steps, tensor):
        for function, args, kwargs, which in steps:
            tensor = function(tensor, *args, **kwargs)
            if which is not None:
                tensor = tensor[which]
        return tensor


class RowTensor(torch.Tensor):
    """Behaves as a dense tensor on the CPU, and has its numbers in a Rows."""

    @staticmethod
    def __new__(cls, rows, view=None):
        view = view or View(0, rows.count)
        outline = View.follow(view.steps, rows.outline())
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            outline.size(),
            strides=outline.stride(),
            storage_offset=outline.storage_offset(),
            dtype=outline.dtype,
        )
        tensor.rows, tensor.view_of_rows = rows, view
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        from . import operations

        return operations.perform(func, args, kwargs or {})

    @property
    def is_whole(self):
        return not self.view_of_rows.steps

    def dense(self, why):
        """(a copy of the rows that it is part of, itself as a part of that copy). Of rows that are dense
        still they are no copies."""
        view = self.view_of_rows
        if not self.rows.in_table:
            return self.rows.given, View.follow(view.steps, self.rows.given)
        base = self.rows.dense(view.first, view.count, why)
        return base, View.follow(view.rest, base)

    # What torch would do with the address of the numbers.

    def _plain(self, why):
        return self.detach().dense(why)[1]

    def numpy(self, *args, **kwargs):
        """An array of the same numbers, as torch's; they are dense as long as somebody has it."""
        if self.requires_grad:
            return torch.zeros(0, requires_grad=True).numpy(*args, **kwargs)  # torch's own error
        owner = self.rows.become_dense("numpy()")
        array = View.follow(self.view_of_rows.steps, owner.detach()).numpy(*args, **kwargs)
        if isinstance(array.base, torch.Tensor):
            array.base.tidepool_owner = owner  # which the array has from now on
        else:
            self.rows.stays_dense = True
        return array

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def _fixed(self, why):
        """The same numbers as a dense tensor, for ever: who has its address is not seen."""
        self.rows.become_dense(why)
        self.rows.stays_dense = True
        return self._plain(why)

    def data_ptr(self):
        return self._fixed("data_ptr()").data_ptr()

    def share_memory_(self):
        self._fixed("share_memory_()").share_memory_()
        return self

    def is_shared(self):
        return not self.rows.in_table and self.rows.given.is_shared()

    def tolist(self):
        return self._plain("tolist()").tolist()

    def __repr__(self, **kwargs):
        plain = self._plain("repr()").requires_grad_(self.requires_grad and self.is_leaf)
        text = torch.Tensor.__repr__(plain, **kwargs)
        if self.grad_fn is not None:
            text = f"{text[:-1]}, grad_fn=<{type(self.grad_fn).__name__}>)"
        return f"Parameter containing:\n{text}" if isinstance(self, torch.nn.Parameter) else text

    def __reduce_ex__(self, protocol):
        """Saved as a dense tensor, which loads wherever torch is."""
        plain = self._plain("pickling")
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(plain, self.requires_grad).__reduce_ex__(protocol)
        return plain.requires_grad_(self.requires_grad).__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            return super().__deepcopy__(memo)  # torch's own error
        twin = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            twin = torch.nn.Parameter(twin, self.requires_grad)
        else:
            twin.requires_grad_(self.requires_grad)
            if self.grad is not None:
                twin.grad = self.grad.__deepcopy__(memo)
        twin.__dict__.update(
            {name: value for name, value in self.__dict__.items() if name not in twin.__dict__}
        )
        memo[id(self)] = twin
        return twin

    @property
    def data(self):
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, value):
        """Other numbers from now on; who has the old ones keeps them."""
        if not self.is_whole:
            raise RuntimeError("tidepool: .data of a part of a weight in rows cannot be assigned")
        given = isinstance(value, RowTensor) and value.is_whole
        waits = self.rows.waits
        rows = value.rows if given else Rows(self.rows.count, self.rows.dim, given=value, waits=waits)
        if value.shape != self.shape or value.dtype != self.dtype:
            torch.Tensor.data.__set__(self, RowTensor(rows))
        self.rows = rows
