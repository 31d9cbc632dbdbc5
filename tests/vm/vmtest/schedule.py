# SPDX-License-Identifier: Apache-2.0
"""Which tests run when: as many at a time as there are processors for, in the order that is given, those that measure
against others' programs alone and last."""

import threading
import time

from .places import say


EIGHTHS = 8
STOOD_STILL = 5.0  # seconds
# A signal may be noticed by another thread; the main one, which has to answer it, does so when it wakes next.
WAKE = 0.5


class Standstill:
    """Notices when this machine, or all that we started, was stopped for a while: `seconds` in all."""

    def __init__(self, clock=time.monotonic, sleep=time.sleep):
        self.clock = clock
        self.sleep = sleep
        self.seconds = 0.0

    def look(self):
        """One second, or more."""
        before = self.clock()
        self.sleep(1)
        more = self.clock() - before - 1
        if more > STOOD_STILL:
            self.seconds += more
            say(f"vm-check: everything stood still for {more:.0f} s")

    def watch(self):
        while True:
            self.look()


class Schedule:
    """`slots` is how many processors there are to give; a test takes as many as its `slots` says (1; less, if
    it mostly waits), all if it is to be alone. One that does not fit now waits, and later ones that fit go first."""

    def __init__(self, tests, slots, clock):
        self.waiting = [one for one in tests if not one.alone] + [one for one in tests if one.alone]
        self.slots = self.free = EIGHTHS * max(1, slots)  # whole numbers: what was taken comes back, to the last bit
        self.clock = clock
        self.began = clock()
        self.count = len(tests)
        self.outcomes = {}
        self.changed = threading.Condition()

    def need(self, test):
        return self.slots if test.alone else min(self.slots, round(EIGHTHS * test.slots))

    def next(self):
        """The first one that fits; None if there is none now. Called under the lock."""
        for test in self.waiting:
            if self.need(test) <= self.free:
                return test
            if test.alone:
                return None  # those behind it wait for it, else it would never come
        return None

    def begin(self):
        """The next test, once there is room for it; None when all have begun."""
        with self.changed:
            while self.waiting:
                test = self.next()
                if test is not None:
                    self.waiting.remove(test)
                    self.free -= self.need(test)
                    return test
                self.changed.wait(WAKE)
            return None

    def end(self, test, outcome):
        with self.changed:
            self.outcomes[test.name] = outcome
            self.free += self.need(test)
            self.changed.notify_all()
            failed = sum(not one.passed for one in self.outcomes.values())
            say(
                f"vm-check: {len(self.outcomes)} of {self.count} done, {failed} failed, "
                f"after {self.clock() - self.began:.0f} s"
            )

    def run(self, work):
        """`work(test)` of each, on a thread of its own; returns the outcomes in the order in which the tests ended."""

        def one(test):
            self.end(test, work(test))

        threads = []
        while (test := self.begin()) is not None:
            threads.append(threading.Thread(target=one, args=(test,)))
            threads[-1].start()
        for thread in threads:
            while thread.is_alive():
                thread.join(WAKE)
        return list(self.outcomes.values())
