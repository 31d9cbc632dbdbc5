# SPDX-License-Identifier: Apache-2.0
"""examples/resume.py, killed at random and started again, ends with the bytes of a run that nothing happened to.
TIDEPOOL_KILLS sets how often (4)."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import tidepool
from places import MemoryServer

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "allocator" / "python" / "examples" / "resume.py"


class Resumed(unittest.TestCase):
    def setUp(self):
        self.server = MemoryServer()
        self.addCleanup(self.server.stop)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, directory, *far):
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLE), str(self.folder / directory), *far], stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def first_batch(self, process):
        """Once it trains: the batch that it began with."""
        return int(process.stdout.readline().removeprefix("from batch "))

    def last_line(self, process):
        said = process.stdout.read()
        self.assertEqual(process.wait(), 0)
        self.assertRegex(said, r"^after batch \d+: [0-9a-f]{64}\n$")
        return said

    def test_killed_at_random(self):
        process = self.start("whole")
        self.assertEqual(self.first_batch(process), 0)
        begun = time.monotonic()
        wanted = self.last_line(process)
        takes = time.monotonic() - begun
        far, reached = ("cxl:64M", self.server.spec), 0
        for number in range(int(os.environ.get("TIDEPOOL_KILLS", "4"))):
            process = self.start("killed", far[number % 2])
            first = self.first_batch(process)
            self.assertGreaterEqual(first, reached)  # no checkpoint was ever lost
            reached = first
            try:
                # Any moment of a run will do: nothing here depends on which one it is.
                process.wait(random.uniform(0, takes / 2))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            process.wait()
            if reached:
                self.assertTrue(tidepool.verify(self.folder / "killed").ok)
        process = self.start("killed", far[0])
        self.assertGreaterEqual(self.first_batch(process), reached)
        self.assertEqual(self.last_line(process), wanted)
        self.assertLessEqual(len(tidepool.checkpoints(self.folder / "killed")), 3)


if __name__ == "__main__":
    unittest.main()
