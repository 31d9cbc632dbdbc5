# SPDX-License-Identifier: Apache-2.0
"""A region as its callers see it, one call after the other: the table of docs/fabric-manager.md, without what goes on
inside. For linearizable.py. Pure."""

from typing import NamedTuple

import linearizable
from recorder import OK, UNKNOWN


class Region(NamedTuple):
    phase: str = "none"  # attached, draining, moving (to another host), going, lost, gone
    host: str = ""
    size: int = 0
    ends: bool = False  # a drain's deadline will come


# Phases in which a region may be found to be lost.
WHEN_A_SERVER_DIED = ("attached", "draining", "moving", "going")
WHEN_RESTORED = ("moving", "going")  # what happened by itself after the backup is not in it


def by_itself(region, may_be_lost):
    """The states that it may come to without a call, and the one that it is in."""
    found, waiting = {region}, [region]
    while waiting:
        one = waiting.pop()
        after = []
        if one.phase == "going":
            after.append(Region("gone"))
        elif one.phase == "moving":
            after.append(one._replace(phase="attached"))
        elif one.phase == "draining" and one.ends:
            after.append(Region("going"))
        if one.phase in may_be_lost:
            after.append(one._replace(phase="lost"))
        waiting += [state for state in after if state not in found]
        found.update(after)
    return found


def reads(region, state, host, size):
    """Whether it may be shown like that."""
    if state in ("attached", "draining"):
        return (region.phase, region.host, region.size) == (state, host, size)
    phases = {"gone": ("none", "gone"), "reserved": ("none",), "lost": ("lost",)}
    return region.phase in phases.get(state, ("going", "moving"))


def called(region, what):
    """The state after a call that was answered with success; None: that answer cannot be."""
    verb, *words = what
    if verb == "read":
        return region if reads(region, *words) else None
    if verb == "assign":
        return Region("attached", *words) if region.phase == "none" else None
    if verb == "release":
        return region._replace(phase="going") if region.phase in ("attached", "draining", "lost") else None
    if verb == "resume":
        return region._replace(phase="attached", ends=False) if region.phase == "draining" else None
    if region.phase != "attached":
        return None
    if verb == "drain":
        return region._replace(phase="draining", ends=words[0] > 0)
    if verb == "resize":
        return region._replace(size=words[0])
    assert verb == "transfer"
    return region._replace(phase="moving", host=words[0]) if region.host != words[0] else None


def check(calls, may_be_lost=()):
    """As linearizable.check()."""
    def step(region, what):
        return {after for before in by_itself(region, may_be_lost) if (after := called(before, what)) is not None}
    return linearizable.check(calls, Region(), step)


class Staleness:
    """What a manager shows that stands by was true, but may be old. So it is with a leader that was cut off, until it
    hears who follows it: what it shows is of a term when somebody had already heard of a later one."""

    def __init__(self, calls):
        self.terms = [(call.end, call.term) for call in calls if call.outcome == OK]

    def may_be(self, call):
        return call.what[0] == "read" and (
            call.old or any(term > call.term for end, term in self.terms if end < call.end))


def judge(records, may_be_lost):
    """Of all regions that callers used: those whose calls no order explains, in words."""
    stale = Staleness(records)
    regions = {}
    for call in records:
        if call.outcome == OK or call.outcome == UNKNOWN and call.what[0] != "assign":  # whose region has no name
            regions.setdefault(call.region, []).append(
                linearizable.Call(0 if stale.may_be(call) else call.start, call.end, call.what))
    return ["\n  ".join([f"region {region} is not linearizable:",
                         *map(str, sorted(calls, key=lambda call: call.start))])
            for region, calls in regions.items() if check(calls, may_be_lost) is None]
