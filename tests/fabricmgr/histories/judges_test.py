#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What judges histories, judged: by histories made by hand, and by the search that tries every order."""

import itertools
import random
import unittest

import audit
import region_model
from linearizable import NEVER, Call, check
from recorder import OK, UNKNOWN, Record

HERE = ("read", "attached", "h1", 2)
MADE = Call(0, 1, ("assign", "h1", 2))


def of_register(state, what):
    """A register that is written and read: the textbook's example."""
    verb, value = what
    return [value] if verb == "write" else [state] if state == value else []


def by_every_order(calls, first, step):
    """Of all subsets that have what must be there, all orders."""
    must = [call for call in calls if call.end != NEVER]
    may = [call for call in calls if call.end == NEVER]
    for count in range(len(may) + 1):
        for some in itertools.combinations(may, count):
            for order in itertools.permutations(must + list(some)):
                in_time = all(not later.end < earlier.start
                              for earlier, later in itertools.combinations(order, 2))
                states = {first}
                for call in order if in_time else ():
                    states = {after for state in states for after in step(state, call.what)}
                if in_time and states:
                    return True
    return False


def made_up(chance, verbs):
    calls = []
    for _ in range(chance.randint(1, 6)):
        start = chance.randint(0, 9)
        end = NEVER if chance.random() < 0.2 else start + chance.randint(0, 5)
        what = chance.choice(verbs)
        calls.append(Call(start, start if end == NEVER and what[0] == "read" else end, what))
    return calls


class SearchTest(unittest.TestCase):
    def test_a_value_read_before_it_is_written_is_found(self):
        write, read = Call(5, 6, ("write", 1)), Call(1, 2, ("read", 1))
        self.assertIsNone(check([write, read], 0, of_register))
        self.assertEqual(check([write, read._replace(end=5.5)], 0, of_register), [1, 0])

    def test_an_old_value_is_found(self):
        history = [Call(0, 1, ("write", 1)), Call(2, 3, ("write", 2)), Call(4, 5, ("read", 1))]
        self.assertIsNone(check(history, 0, of_register))

    def test_two_readers_see_one_order(self):
        writes = [Call(0, 9, ("write", 1)), Call(0, 9, ("write", 2))]
        one = [Call(1, 2, ("read", 1)), Call(3, 4, ("read", 2))]
        self.assertIsNotNone(check(writes + one, 0, of_register))
        self.assertIsNone(check(writes + one + [Call(5, 6, ("read", 1))], 0, of_register))

    def test_what_is_unknown_may_have_happened_late_or_never(self):
        write = Call(0, NEVER, ("write", 1))
        self.assertIsNotNone(check([write, Call(2, 3, ("read", 0))], 0, of_register))
        self.assertIsNotNone(check([write, Call(2, 3, ("read", 0)), Call(4, 5, ("read", 1))], 0, of_register))
        self.assertIsNone(check([write, Call(2, 3, ("read", 1)), Call(4, 5, ("read", 0))], 0, of_register))

    def test_it_agrees_with_the_search_through_every_order(self):
        chance = random.Random(1)
        verdicts = {True: 0, False: 0}
        for _ in range(1500):
            calls = made_up(chance, [("write", 0), ("write", 1), ("read", 0), ("read", 1)])
            expected = by_every_order(calls, 0, of_register)
            self.assertEqual(check(calls, 0, of_register) is not None, expected, calls)
            verdicts[expected] += 1
        self.assertGreater(min(verdicts.values()), 100, "both verdicts are tried")

    def test_many_calls_at_once_are_no_trouble(self):
        writes = [Call(0, 100, ("write", value)) for value in range(12)]
        self.assertIsNone(check(writes + [Call(0, 100, ("read", 77))], 0, of_register))


class RegionTest(unittest.TestCase):
    def good(self, *calls, may_be_lost=()):
        self.assertIsNotNone(region_model.check(calls, may_be_lost))

    def bad(self, *calls):
        self.assertIsNone(region_model.check(calls))

    def test_it_is_as_it_was_assigned(self):
        self.good(MADE, Call(2, 3, HERE))
        self.bad(MADE, Call(2, 3, ("read", "attached", "h2", 2)))
        self.bad(MADE, Call(2, 3, ("read", "attached", "h1", 4)))
        self.bad(MADE, Call(2, 3, ("read", "gone", "", 0)))

    def test_what_is_released_goes_and_does_not_come_back(self):
        released = Call(2, 3, ("release",))
        self.good(MADE, released, Call(4, 5, ("read", "scrubbing", "h1", 2)), Call(6, 7, ("read", "gone", "", 0)))
        self.bad(MADE, released, Call(4, 5, HERE))
        self.bad(MADE, released, Call(4, 5, ("read", "gone", "", 0)), Call(6, 7, ("read", "fenced", "h1", 2)))
        self.bad(MADE, released, Call(4, 5, ("release",)))

    def test_a_release_of_which_nothing_is_known(self):
        unknown = Call(2, NEVER, ("release",))
        self.good(MADE, unknown, Call(8, 9, HERE))
        self.good(MADE, unknown, Call(8, 9, ("read", "gone", "", 0)))
        self.bad(MADE, unknown, Call(4, 5, ("read", "gone", "", 0)), Call(8, 9, HERE))

    def test_a_drain_ends_by_itself_only_if_it_has_a_deadline(self):
        gone = Call(4, 5, ("read", "gone", "", 0))
        self.good(MADE, Call(2, 3, ("drain", 100)), gone)
        self.bad(MADE, Call(2, 3, ("drain", 0)), gone)
        self.good(MADE, Call(2, 3, ("drain", 0)), Call(4, 5, ("read", "draining", "h1", 2)), Call(6, 7, ("resume",)),
                  Call(8, 9, HERE))
        self.bad(MADE, Call(2, 3, ("resume",)))

    def test_a_transfer_arrives_and_only_once(self):
        over = Call(2, 3, ("transfer", "h2"))
        there = Call(6, 7, ("read", "attached", "h2", 2))
        self.good(MADE, over, Call(4, 5, ("read", "fenced", "h1", 2)), there)
        self.bad(MADE, over, Call(4, 5, HERE))
        self.bad(MADE, over, there, Call(8, 9, ("read", "fenced", "h1", 2)))

    def test_two_that_resize_at_once(self):
        both = [Call(2, 9, ("resize", 4)), Call(2, 9, ("resize", 6))]
        read = ("read", "attached", "h1")
        self.good(MADE, *both, Call(10, 11, (*read, 4)))
        self.good(MADE, *both, Call(3, 4, (*read, 6)), Call(10, 11, (*read, 4)))
        self.bad(MADE, *both, Call(3, 4, (*read, 4)), Call(5, 6, (*read, 6)), Call(10, 11, (*read, 4)))
        self.bad(MADE, *both, Call(10, 11, (*read, 2)))

    def test_memory_is_lost_only_with_a_memory_server(self):
        lost = Call(2, 3, ("read", "lost", "h1", 2))
        self.good(MADE, lost, Call(4, 5, ("release",)), Call(6, 7, ("read", "gone", "", 0)),
                  may_be_lost=region_model.WHEN_A_SERVER_DIED)
        self.bad(MADE, lost)

    def test_what_went_after_a_backup_may_be_lost_with_that(self):
        """As in history 4: the deadline came between the backup and its being put back."""
        calls = [MADE, Call(2, 3, ("resize", 4)), Call(4, 5, ("drain", 1500)), Call(40, 41, ("read", "lost", "h1", 4))]
        self.good(*calls, may_be_lost=region_model.WHEN_RESTORED)
        self.bad(*calls)
        with self.assertRaises(AssertionError):
            self.good(MADE, Call(2, 3, ("read", "lost", "h1", 2)), may_be_lost=region_model.WHEN_RESTORED)

    def test_it_agrees_with_the_search_through_every_order(self):
        chance = random.Random(2)
        verbs = [("assign", "h1", 2), HERE, ("release",), ("drain", 1), ("drain", 0), ("resume",), ("resize", 4),
                 ("transfer", "h2"), ("read", "draining", "h1", 2), ("read", "gone", "", 0),
                 ("read", "attached", "h2", 2)]
        def step(region, what):
            afters = {region_model.called(before, what) for before in region_model.by_itself(region, ())}
            return afters - {None}
        verdicts = {True: 0, False: 0}
        for _ in range(1500):
            calls = [MADE, *made_up(chance, verbs)][:6]
            expected = by_every_order(calls, region_model.Region(), step)
            self.assertEqual(region_model.check(calls) is not None, expected, calls)
            verdicts[expected] += 1
        self.assertGreater(min(verdicts.values()), 100, "both verdicts are tried")


class StalenessTest(unittest.TestCase):
    def test_only_a_leader_that_was_followed_may_show_what_was(self):
        change = Record(1, 2, ("release",), 7, OK, index=9, term=5)
        stale = region_model.Staleness([change])
        self.assertTrue(stale.may_be(Record(3, 4, HERE, 7, OK, term=4)))
        self.assertFalse(stale.may_be(Record(3, 4, HERE, 7, OK, term=5)))
        self.assertTrue(stale.may_be(Record(3, 4, HERE, 7, OK, term=5, old=True)))
        self.assertFalse(stale.may_be(Record(0, 1, HERE, 7, OK, term=4)))
        self.assertFalse(stale.may_be(change._replace(start=3, end=4, term=4)))
        made = Record(0, 0.5, ("assign", "h1", 2), 7, OK, index=8, term=4)
        old = Record(3, 4, HERE, 7, OK, term=4)
        self.assertEqual(region_model.judge([made, change, old], ()), [])
        self.assertEqual(len(region_model.judge([made, change, old._replace(term=5)], ())), 1)


def record(index, changes, number=1):
    return {"index": index, "id": number, "verb": "region.assign", "changes": changes}


class AuditTest(unittest.TestCase):
    def test_what_is_held_twice_is_found_at_its_index(self):
        first = record(1, "region 1 name=- host=1 state=attached epoch=1 created=0 extents=3:0+8,4:0+8\n")
        beside = record(2, "region 2 name=- host=1 state=attached epoch=1 created=0 extents=3:8+8\n")
        within = record(3, "region 3 name=- host=1 state=reserved epoch=1 created=0 extents=4:4+1\n")
        self.assertEqual(audit.play([first, beside])[0], [])
        self.assertEqual(audit.play([first, beside, within])[0], ["index 3: region 3 has what region 1 has"])
        freed = record(3, "drop-region 1\n")
        self.assertEqual(audit.play([first, beside, freed, within])[0], [])

    def test_a_region_that_holds_a_piece_twice_is_found(self):
        twice = record(1, "region 1 name=- host=1 state=attached epoch=1 created=0 extents=3:0+8,3:4+8\n")
        self.assertEqual(len(audit.play([twice])[0]), 1)

    def test_one_change_moves_bytes_from_one_region_to_another(self):
        before = record(1, "region 1 name=- host=1 state=attached epoch=1 created=0 extents=3:0+8\n")
        split = record(2, "region 2 name=- host=1 state=fenced epoch=1 created=0 extents=3:4+4\n"
                          "region 1 name=- host=1 state=attached epoch=1 created=0 extents=3:0+4\n")
        self.assertEqual(audit.play([before, split])[0], [])

    def test_an_acknowledged_change_that_is_not_there_is_found(self):
        call = Record(1, 2, ("assign", "h1", 2), 1, OK, index=1)
        self.assertEqual(audit.check_acknowledged([record(1, "")], [call]), [])
        self.assertEqual(len(audit.check_acknowledged([], [call])), 1)
        self.assertEqual(len(audit.check_acknowledged([record(1, "", 2)], [call])), 1)
        self.assertEqual(audit.check_acknowledged([], [call._replace(outcome=UNKNOWN, end=NEVER)]), [])

    def test_an_index_that_goes_back_is_found(self):
        calls = [Record(1, 2, ("release",), 1, OK, index=5), Record(3, 4, ("release",), 1, OK, index=4)]
        records = [record(5, ""), record(4, "")]
        self.assertEqual(len(audit.check_acknowledged(records, calls)), 1)
        self.assertEqual(audit.check_acknowledged(records, [calls[0], calls[1]._replace(start=2)]), [])


if __name__ == "__main__":
    unittest.main()
