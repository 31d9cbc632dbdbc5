# SPDX-License-Identifier: Apache-2.0
"""Has nn.Embedding and nn.EmbeddingBag make large weights as rows; where gradients are dense, when that is known to
do."""

import functools
import inspect
import operator

import torch

from .library import ELEMENTS, say

_MOST_DIM = 4096  # of a table
_DTYPES = [getattr(torch, element) for element in ELEMENTS]


def patch(module, settings):
    """Changes the constructors of the module torch."""
    for layer in (module.nn.Embedding, module.nn.EmbeddingBag):
        layer.__init__ = _with_rows(layer, layer.__init__, settings)
    _tell_lazy_ones_apart(module.nn.parameter.UninitializedParameter)


def _tell_lazy_ones_apart(lazy):
    """torch 1.13 takes a parameter of any subclass of Tensor for a lazy one, too, which
    DistributedDataParallel refuses."""

    class Exact(type(lazy)):
        def __instancecheck__(cls, instance):
            return type.__instancecheck__(cls, instance)

    lazy.__class__ = Exact


def _in_local_memory(given):
    """Whether the numbers of a layer made with these arguments would be there."""
    device = given.get("device")
    device = torch.empty(0).device if device is None else torch.device(device)
    return device.type == "cpu"


def _fits(weight, shape):
    """Whether a given weight can become rows."""
    return type(weight) is torch.Tensor and weight.shape == shape


def _dtype(given):
    """Of the weight of a layer made with these arguments."""
    weight = given.get("_weight")
    if weight is None:
        return given.get("dtype") or torch.get_default_dtype()
    return getattr(weight, "dtype", None)


def _wanted(given, settings):
    """The shape of the weight to make of rows; None: the layer stays as it is."""
    if not given.get("sparse") and (not settings.dense_gradients or given.get("mode") == "max"):
        return None
    try:
        rows, dim = (operator.index(given[name]) for name in ("num_embeddings", "embedding_dim"))
    except (KeyError, TypeError):
        return None
    dtype = _dtype(given)
    if dtype not in _DTYPES or rows < 1 or not 1 <= dim <= _MOST_DIM:
        return None
    return (rows, dim) if rows * dim * torch.finfo(dtype).bits // 8 >= settings.min else None


def _make(layer, shape, weight, dtype, sparse):
    """The weight in rows, or that will be; None where there is no room, or no far tier, for it."""
    # Not before it is needed: programs without such layers start sooner.
    from .dense_gradients import DenseGradRowTensor
    from .rows import Rows
    from .tensor import RowTensor

    if not sparse:
        weight = torch.empty(shape, dtype=dtype) if weight is None else weight
        return DenseGradRowTensor(Rows(*shape, given=weight, waits=True))
    try:
        return RowTensor(Rows(*shape, given=weight, dtype=dtype))
    except (RuntimeError, OSError, AttributeError) as error:
        say(f"{layer.__name__} of {shape[0]} x {shape[1]} stays in pages: {error}")
        return None


def _watch_loaders():
    try:
        from . import ahead

        ahead.watch_loaders()
    except Exception as error:  # a torch whose loaders are others
        say(f"reading ahead: off: {error}")


def _with_rows(layer, plain, settings):
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def construct(self, *args, **kwargs):
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            return plain(self, *args, **kwargs)  # which says what is wrong
        given = bound.arguments
        shape = _wanted(given, settings)
        weight = given.get("_weight")
        if shape is None or not (_in_local_memory(given) if weight is None else _fits(weight, shape)):
            return plain(self, *args, **kwargs)
        made = _make(layer, shape, weight, _dtype(given), given.get("sparse"))
        if made is None:
            return plain(self, *args, **kwargs)
        if settings.ahead:
            _watch_loaders()
        given["_weight"] = made
        plain(*bound.args, **bound.kwargs)
        if weight is None:
            self.reset_parameters()  # as the constructor does that has no weight given
        return None

    return construct
