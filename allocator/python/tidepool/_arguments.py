# SPDX-License-Identifier: Apache-2.0
"""Arguments as the core wants them: arrays without a copy, words as enums, sizes as bytes."""

import functools
import math
import operator

import numpy

from . import _core
from .errors import InvalidArgument

_FINER = 30  # bits by which parts of small tables are worked out finer than bytes


def array(value, argument):
    """The NumPy array of `value`, without a copy: an array, a torch tensor in CPU memory, or anything with DLPack
    or the buffer protocol. Lists are refused: making an array of one costs more than looking it up. The core checks
    types and shapes."""
    if isinstance(value, numpy.ndarray):
        if isinstance(value, numpy.ma.MaskedArray):
            raise TypeError(f"{argument}: the mask of a masked array would be left out; give its .data, or .filled()")
        return value
    device = getattr(value, "device", None)
    if getattr(device, "type", "cpu") != "cpu":
        raise TypeError(f"{argument}: tables are in CPU memory, and this tensor is on {device}")
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        return value.detach().numpy()
    if hasattr(value, "__dlpack__"):
        return numpy.from_dlpack(value)
    try:
        return numpy.asarray(memoryview(value))
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{argument}: an array or a tensor is needed, not {kind}") from None


def optional_array(value, argument):
    return None if value is None else array(value, argument)


@functools.cache
def _members(kind):
    """The members of an enum of the core, which makes a new dict of them each time that it is asked."""
    return kind.__members__


def word(value, argument, kind):
    """The member of an enum of the core that `value` names."""
    if not isinstance(value, str):
        raise TypeError(f"{argument}: a word is needed, not {type(value).__name__}")
    members = _members(kind)
    if value not in members:
        raise InvalidArgument(f"{argument}: {value!r} is none of {', '.join(members)}")
    return members[value]


def whole(value, argument, least, most):
    """An int in a range."""
    if isinstance(value, bool):
        raise TypeError(f"{argument}: a whole number is needed, not bool")
    try:
        number = operator.index(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{argument}: a whole number is needed, not {kind}") from None
    if not least <= number <= most:
        raise InvalidArgument(f"{argument}: {number} is not from {least} to {most}")
    return number


def real(value, argument, least=-math.inf, below=math.inf):
    """A finite number, at least `least` and less than `below`, as float32 can hold it."""
    if isinstance(value, (bool, str)):
        raise TypeError(f"{argument}: a number is needed, not {type(value).__name__}")
    try:
        number = float(value)
    except TypeError:
        raise TypeError(f"{argument}: a number is needed, not {type(value).__name__}") from None
    if not math.isfinite(number) or abs(number) > 3.4028234e38:
        raise InvalidArgument(f"{argument}: {number} is not a finite float32")
    if not least <= number < below:
        allowed = f"at least {least}" if below == math.inf else f"from {least} to less than {below}"
        raise InvalidArgument(f"{argument}: {number} is not {allowed}")
    return number


def size(value, argument, of):
    """Bytes: an int, or a text such as "256M", "1.5G" or "10%" (of `of` bytes; of few it may be 0)."""
    if isinstance(value, str):
        try:
            if is_part(value) and 0 < of < 2**_FINER:  # less than a byte of a small table is a part all the same
                return _core.parse_size(value, of << _FINER) >> _FINER
            return _core.parse_size(value, of)
        except InvalidArgument as error:
            raise InvalidArgument(f"{argument}: {error}") from None
    return whole(value, argument, 0, 2**62)


def is_part(value):
    """Whether a size is a part of something, such as "10%"."""
    return isinstance(value, str) and value.strip().endswith("%")


def initializer(value):
    """What rows begin with: None or "zero", ("uniform", low, high[, seed]), ("normal", mean, deviation[, seed])."""
    if value is None or value == "zero":
        return _core.Initializer(_core.InitializerKind.zero, 0, 0, 0)
    if not isinstance(value, (tuple, list)) or not 3 <= len(value) <= 4:
        raise TypeError('init: "zero", ("uniform", low, high[, seed]) or ("normal", mean, deviation[, seed])')
    kind = word(value[0], "init", _core.InitializerKind)
    if kind == _core.InitializerKind.zero:
        raise InvalidArgument('init: "zero" has no numbers')
    first, second = real(value[1], "init"), real(value[2], "init")
    if kind == _core.InitializerKind.uniform and not first <= second:
        raise InvalidArgument(f"init: the least value, {first}, is above the greatest, {second}")
    if kind == _core.InitializerKind.normal and second < 0:
        raise InvalidArgument(f"init: a standard deviation of {second}")
    seed = whole(value[3], "init: seed", 0, 2**64 - 1) if len(value) == 4 else 0
    return _core.Initializer(kind, first, second, seed)
