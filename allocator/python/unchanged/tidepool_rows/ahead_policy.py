# SPDX-License-Identifier: Apache-2.0
"""Whether batches are announced to a table, and when they are over. Pure: no clock, no torch, no table; not
thread-safe (ahead.py's lock)."""

import collections
import statistics


class Trust:
    """In a source of a table's ids, by the batches whose ids from there were looked up, or were not.

    It is won by a few in a row; a batch that the program left out, once in a while, does not cost it.
    """

    NEEDED, MOST, UNUSED = 3, 8, 2

    def __init__(self):
        self._score = 0

    def saw(self, used):
        self._score = min(self._score + 1, self.MOST) if used else self._score - self.UNUSED

    @property
    def won(self):
        return self._score >= self.NEEDED

    @property
    def lost(self):
        return self._score < 0


class Worth:
    """Whether announcing pays: how long a batch takes without it and with it is compared, a look-up, and what takes less
    is done for a while, for twice as long each time that it comes out the same. The whole batch, since what is read
    ahead may slow the rest of the program where processors are few. Of a window the first batches do not count:
    some of theirs were announced before it, or were not. The median of the others does, for machines have other work.
    """

    WINDOW, SETTLING = 18, 6  # batches
    FIRST_SPAN, MOST_SPAN = 128, 4096
    FEW = 256  # one look-up in so many waits for a row: nothing to be had
    LEAST = 0.98  # of the time without it: less of a gain is not worth the memory

    def __init__(self):
        self._span, self._verdict = self.FIRST_SPAN, None
        self._costs = {}
        self._begin("without", self.WINDOW)

    def _begin(self, phase, length):
        self._phase, self._left = phase, length
        self._lookups = self._fetched = 0
        self._costs[phase] = []

    @property
    def announces(self):
        return self._phase in ("with", "on")

    @property
    def rests(self):
        """It was found not to pay: memory for it need not be kept."""
        return self._phase == "off"

    def batch(self, seconds, lookups, fetched):
        """A batch is over: the time since the one before was, how many rows of the table it looked up, and how many of
        them it waited for."""
        if lookups == 0:
            return
        self._left -= 1
        if self._phase in ("on", "off"):
            if self._left == 0:
                self._begin("without", self.WINDOW)
            return
        if self._left < self.WINDOW - self.SETTLING:
            self._costs[self._phase].append(seconds / lookups)
            self._lookups += lookups
            self._fetched += fetched
        if self._left > 0:
            return
        if self._phase == "with":
            cost = {phase: statistics.median(self._costs[phase]) for phase in ("with", "without")}
            self._decide(cost["with"] < self.LEAST * cost["without"])
        elif self._fetched * self.FEW < self._lookups:
            self._decide(False)
        else:
            self._begin("with", self.WINDOW)

    def _decide(self, verdict):
        same = verdict == self._verdict
        self._span = min(2 * self._span, self.MOST_SPAN) if same else self.FIRST_SPAN
        self._verdict = verdict
        self._begin("on" if verdict else "off", self._span)


class Announced:
    """Batches announced to a table that are not finished. A table finishes them in their order alone, and several
    loaders may feed it: one whose turn has not come waits, but not behind a loader that was left standing."""

    MOST = 32

    def __init__(self):
        self._waiting = collections.OrderedDict()  # token: whether it is over

    def add(self, token):
        """Returns the token to finish, None if there is none; over() as well."""
        self._waiting[token] = False
        return self._finishable()

    def over(self, token):
        if token in self._waiting:
            self._waiting[token] = True
        return self._finishable()

    def clear(self):
        self._waiting.clear()

    def __len__(self):
        return len(self._waiting)

    def _finishable(self):
        last = None
        while self._waiting:
            token, over = next(iter(self._waiting.items()))
            if not over and len(self._waiting) <= self.MOST:
                break
            del self._waiting[token]
            last = token
        return last
