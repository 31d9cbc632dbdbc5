# SPDX-License-Identifier: Apache-2.0
"""Plays the audit's changes, without any of the manager's code: at each index nothing is held twice; and what callers
were told is there, in the order in which they were told. Pure but for records_of()."""

import json
import subprocess

from recorder import OK


class Held:
    """Who holds which bytes."""

    def __init__(self):
        self.regions = {}  # their extents: (device, start, end)

    def set(self, region, extents):
        """What is held twice then."""
        self.regions.pop(region, None)
        twice = [other for other, held in self.regions.items() if any(overlap(a, b) for a in extents for b in held)]
        twice += [region for n, a in enumerate(extents) for b in extents[n + 1:] if overlap(a, b)]
        self.regions[region] = extents
        return twice

    def drop(self, region):
        self.regions.pop(region, None)


def overlap(one, other):
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def extents_in(text):
    found = []
    for one in filter(None, text.split(",")):
        device, place = one.split(":")
        start, length = map(int, place.split("+"))
        found.append((int(device), start, start + length))
    return found


def records_of(fabricmgr, sock):
    done = subprocess.run([fabricmgr, "audit", "export", "--format", "jsonl", "--fabric", f"unix:{sock}"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def play(records):
    """What is wrong, and who holds what at the end."""
    held = Held()
    wrong = []
    for record in records:
        given = {}
        for line in record["changes"].splitlines():
            verb, number, *fields = line.split(" ")
            if verb == "drop-region":
                given[int(number)] = None
            elif verb == "region":
                given[int(number)] = extents_in(dict(field.split("=", 1) for field in fields)["extents"])
        # A change as a whole: what one region gives up another may take. So the smaller ones first.
        for region in given:
            held.drop(region)
        for region, extents in given.items():
            if extents is not None:
                wrong += [f"index {record['index']}: region {region} has what region {other} has"
                          for other in held.set(region, extents)]
    return wrong, held


def check_acknowledged(records, calls):
    """Each change that was acknowledged has its record; and who had ended before who began has a lower index."""
    by_index = {}
    for record in records:
        by_index.setdefault(record["index"], []).append(record)
    changes = [call for call in calls if call.outcome == OK and call.index]
    wrong = [f"lost: {call}" for call in changes
             if not any(record["id"] == call.region or call.what[0] == "resize"  # that may be its new end's
                        for record in by_index.get(call.index, ()))]
    highest = 0
    ends = sorted(changes, key=lambda call: call.end)
    at = 0
    for call in sorted(changes, key=lambda call: call.start):
        while at < len(ends) and ends[at].end < call.start:
            highest = max(highest, ends[at].index)
            at += 1
        if call.index <= highest:
            wrong.append(f"index {highest} was told before this began: {call}")
    return wrong
