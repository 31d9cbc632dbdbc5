# SPDX-License-Identifier: Apache-2.0
"""Whether a recorded history of one object is linearizable: whether all calls can be put in an order that keeps who
ended before who began, and in which a sequential object would have answered the same. The search is Wing and Gong's
(Testing and Verifying Concurrent Objects, 1993) with the memory of Lowe (Testing for Linearizability, 2017): what was
tried, a set of calls and a state, is not tried again. Pure."""

from typing import Callable, Hashable, Iterable, NamedTuple

NEVER = float("inf")


class Call(NamedTuple):
    start: float
    end: float  # NEVER: nobody knows whether it was carried out
    what: tuple


def check(calls: Iterable[Call], first: Hashable, step: Callable[[Hashable, tuple], Iterable[Hashable]]):
    """An order that explains the calls, as indices into them sorted by start; None: there is none. `step` gives the
    states after a call that was answered like that; several, where the object does things by itself."""
    calls = sorted(calls, key=lambda call: call.start)
    must = sum(1 << number for number, call in enumerate(calls) if call.end != NEVER)
    seen = {(0, first)}
    waiting = [(0, first, None)]
    while waiting:
        place = waiting.pop()
        done, state, _ = place
        if done & must == must:
            return trace(place)
        for number in reversed(candidates(calls, done)):  # the earliest is tried first
            for after in step(state, calls[number].what):
                found = (done | 1 << number, after)
                if found not in seen:
                    seen.add(found)
                    waiting.append((*found, (number, place)))
    return None


def candidates(calls, done):
    """Those that may come next: no other one that is left had ended before they began."""
    least = NEVER
    found = []
    first = (~done & done + 1).bit_length() - 1  # that is left
    for number in range(first, len(calls)):
        call = calls[number]
        if done >> number & 1:
            continue
        if call.start > least:
            break  # and so do all that follow
        least = min(least, call.end)
        found.append(number)
    return [number for number in found if calls[number].start <= least]


def trace(place):
    order = []
    while place[2] is not None:
        number, place = place[2]
        order.append(number)
    return order[::-1]
