# SPDX-License-Identifier: Apache-2.0
"""Pages and rows of one process share its local memory by what each gains, under `tidepool run` with a memory server."""

import json
import os
import sys
import unittest

from places import MemoryServer
from rows_test import BUILD, run

# Touches pages and gathers rows, at random among as many as it is told, until the tables have as much as is wanted, or
# for so many rounds: how soon they do depends on what faults and reads take just now. All that it reads has to be what
# it wrote.
PROGRAM = """
import json, os, subprocess, sys
import numpy
sys.path.insert(0, os.environ["PYTHONPATH"].split(":")[0])
from tidepool_rows import library

command = sys.argv[1]
hot_pages, touches, hot_rows, rounds, wanted, own_budget, more_tables = map(int, sys.argv[2:])
ROWS, DIM, WORDS, LOOKUPS, PIECE = 400_000, 64, 512, 8192, 20_000
random = numpy.random.default_rng(3)
pages = numpy.zeros((24576, WORDS), numpy.int64)
pages[:, 0] = numpy.arange(len(pages))
counts = numpy.zeros(len(pages), numpy.int64)
table = library.Table(ROWS, DIM)
if own_budget:
    library.check(library._library, library._library.tidepool_tables_set_budget(library._context, own_budget))
pieces = [numpy.arange(first, first + PIECE) for first in range(0, ROWS, PIECE)]
for ids in pieces:
    values = numpy.repeat(ids.astype(numpy.float32)[:, None], DIM, 1)
    table.write(ids.ctypes.data, PIECE, values.ctypes.data)

def budget():
    words = [command, "stat", str(os.getpid()), "--json"]
    stats = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    return sum(one["dram_budget_bytes"] for one in stats["tables"])

budgets = [budget()]
values = numpy.empty((PIECE, DIM), numpy.float32)
for step in range(rounds):
    at = random.integers(0, hot_pages, touches)
    numpy.add.at(counts, at, 1)
    numpy.add.at(pages, (at, 1), 1)
    ids = random.integers(0, hot_rows, LOOKUPS)
    table.gather(ids.ctypes.data, LOOKUPS, values.ctypes.data)
    assert (values[:LOOKUPS] == ids.astype(numpy.float32)[:, None]).all(), step
    if wanted and step % 10 == 9 and (budgets[0] < wanted) == (budget() >= wanted):
        break
budgets.append(budget())
more = [library.Table(5000, 16) for _ in range(more_tables)]
budgets.append(budget())
assert (pages[:, 0] == numpy.arange(len(pages))).all() and (pages[:, 1] == counts).all()
assert (pages[:, 2:] == 0).all()
for ids in pieces:
    table.read(ids.ctypes.data, PIECE, values.ctypes.data)
    assert (values == ids.astype(numpy.float32)[:, None]).all(), ids[0]
print(json.dumps(budgets))
"""
DRAM = 96 << 20
ALL_ROWS = 400_000  # a hundred MiB


class OneBudget(unittest.TestCase):
    """Tables begin with half of it."""

    def budgets(self, hot_pages, touches, hot_rows, rounds=1500, wanted=0, own_budget=0, more_tables=0):
        """What the tables have before, after, and once there are more of them."""
        server = MemoryServer("1G")
        self.addCleanup(server.stop)
        numbers = (hot_pages, touches, hot_rows, rounds, wanted, own_budget, more_tables)
        command = os.path.join(BUILD, "bin", "tidepool")
        words = [sys.executable, "-c", PROGRAM, command, *map(str, numbers)]
        found = run(*words, far=server.spec, dram=str(DRAM), OPENBLAS_NUM_THREADS="1")
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertEqual(found.stderr, "")
        return json.loads(found.stdout)

    def test_pages_that_gain_more_get_more(self):
        wanted = DRAM * 2 // 5
        before, after, _ = self.budgets(12288, 512, ALL_ROWS, wanted=wanted)
        self.assertAlmostEqual(before, DRAM / 2, delta=DRAM / 100)
        self.assertLess(after, wanted)

    def test_rows_that_gain_more_get_more(self):
        wanted = DRAM * 3 // 5
        before, after, _ = self.budgets(512, 64, 240_000, wanted=wanted)
        self.assertAlmostEqual(before, DRAM / 2, delta=DRAM / 100)
        self.assertGreaterEqual(after, wanted)

    def test_what_the_program_says_stays(self):
        own = 32 << 20
        for found in self.budgets(12288, 512, ALL_ROWS, rounds=40, own_budget=own):
            self.assertAlmostEqual(found, own, delta=DRAM / 100)

    def test_tables_that_come_later_find_room_all_the_same(self):
        wanted = 30 << 20
        _, after, later = self.budgets(12288, 512, ALL_ROWS, wanted=wanted, more_tables=150)
        self.assertLess(after, wanted)
        self.assertGreater(later, after + (4 << 20))
        self.assertLessEqual(later, DRAM / 2)


if __name__ == "__main__":
    unittest.main()
