# SPDX-License-Identifier: Apache-2.0
"""Programs that end while calls are under way: daemon threads, and forked children that have tokens still."""

import subprocess
import sys
import unittest

from places import MemoryServer

LOOP = """
import sys, threading, time
import numpy, tidepool

space = tidepool.Space([sys.argv[1]], threads=1)
table = tidepool.Table(space, "t", 50_000, 16, tier=int(sys.argv[2]))
ids, offsets = numpy.arange(4000) * 12, numpy.arange(0, 4001, 40)
ones = numpy.ones((100, 16), numpy.float32)
begun = threading.Semaphore(0)
CALLS = {
    "bag": lambda: table.bag(ids, offsets),
    "update": lambda: table.update(ids, offsets, ones),
    "read": lambda: table.read(ids),
    "write": lambda: table.write(ids[:100], ones),
    "prefetch": lambda: table.prefetch(ids[:50]).done(),
    "counts": lambda: table.counts(),
}

def loop():
    call = CALLS[sys.argv[3]]
    call()
    begun.release()
    while True:
        call()

for _ in range(3):
    threading.Thread(target=loop, daemon=True).start()
for _ in range(3):
    begun.acquire()
"""

# Functions in the module let its globals live until modules are gone.
CHILD = """
import os, sys
import numpy, tidepool

space = tidepool.Space([sys.argv[1]])
table = tidepool.Table(space, "t", 500, 16, tier=1)
tokens = [table.prefetch(numpy.arange(10)) for _ in range(3)]
keep = sys.modules["keep"] = type(sys)("keep")
keep.tokens = tokens

def function():
    return tokens

child = os.fork()
if child == 0:
    sys.exit(3)
_, status = os.waitpid(child, 0)
tokens[0].done()
assert os.waitstatus_to_exitcode(status) == 3
print("done")
"""


class Ends(unittest.TestCase):
    def setUp(self):
        self.server = MemoryServer()
        self.addCleanup(self.server.stop)

    def run_program(self, program, *arguments):
        return subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=60
        )

    def test_daemon_threads_that_are_in_calls(self):
        for tier, far in ((0, "cxl:64M"), (1, "cxl:64M"), (1, self.server.spec + ":32M")):
            for call in ("bag", "update", "read", "write", "prefetch", "counts"):
                with self.subTest(tier=tier, far=far, call=call):
                    ended = self.run_program(LOOP, far, tier, call)
                    self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_children_that_end_with_tokens(self):
        ended = self.run_program(CHILD, self.server.spec + ":32M")
        self.assertEqual((ended.returncode, ended.stderr, ended.stdout), (0, "", "done\n"))


if __name__ == "__main__":
    unittest.main()
