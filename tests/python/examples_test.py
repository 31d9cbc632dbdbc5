# SPDX-License-Identifier: Apache-2.0
"""The examples run, and the same model learns the same with its table in any tier."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

from places import MemoryServer

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "allocator" / "python" / "examples"


def output(name, *words):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words], text=True, capture_output=True, check=False, env=os.environ
    )
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


class Examples(unittest.TestCase):
    def setUp(self):
        self.server = MemoryServer()
        self.addCleanup(self.server.stop)

    def test_training(self):
        def losses(*words):
            return [float(found) for found in re.findall(r"loss ([\d.]+)", output("train.py", *words))]

        plain = losses()
        self.assertEqual(len(plain), 5)
        self.assertLess(plain[-1], plain[0])
        for far in ("cxl:256M", self.server.spec):
            for one, other in zip(plain, losses(far)):
                self.assertAlmostEqual(one, other, delta=2e-4)

    def test_lookahead(self):
        said = output("lookahead.py", self.server.spec)
        self.assertRegex(said, r"^64 steps; \d+ rows came ahead, 0 had to be waited for")


if __name__ == "__main__":
    unittest.main()
