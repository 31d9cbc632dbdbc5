# SPDX-License-Identifier: Apache-2.0
"""`pip install .` as a user does it: into a fresh virtual environment, from a copy of the tree, without network."""

import os
import pathlib
import shutil
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(os.environ["TIDEPOOL_SOURCE"])
WORK = pathlib.Path(os.environ["TIDEPOOL_WORK"])
PARTS = ("CMakeLists.txt", "cmake", "runtime", "allocator", "pyproject.toml", "setup.py", "LICENSE", "README.md")
PROGRAM = """
import inspect, numpy, pathlib, tidepool, tidepool.torch, torch
package = pathlib.Path(tidepool.__file__).parent
assert "environment" in str(package), package
assert (package / "py.typed").exists() and (package / "_core.pyi").exists()
with tidepool.Space(far=["cxl:16M"]) as space:
    bag = tidepool.torch.EmbeddingBag(100, 8, space=space, tier=1, dram="16K")
    bag(torch.tensor([[1, 2]])).sum().backward()
    print(bag.table.counts().steps)
"""


class Install(unittest.TestCase):
    def setUp(self):
        shutil.rmtree(WORK, ignore_errors=True)
        (WORK / "tree").mkdir(parents=True)
        self.addCleanup(shutil.rmtree, WORK, ignore_errors=True)

    def run_quietly(self, *command):
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" and value}
        done = subprocess.run(command, cwd=WORK, env=clean, text=True, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_into_a_fresh_environment(self):
        for part in PARTS:
            if (SOURCE / part).is_dir():
                shutil.copytree(SOURCE / part, WORK / "tree" / part, ignore=shutil.ignore_patterns("*.egg-info"))
            else:
                shutil.copy(SOURCE / part, WORK / "tree" / part)
        environment = WORK / "environment"
        self.run_quietly(sys.executable, "-m", "venv", "--system-site-packages", str(environment))
        pip = [str(environment / "bin" / "pip"), "install", "--no-index", "--no-build-isolation", "--no-deps"]
        self.run_quietly(*pip, str(WORK / "tree"))
        self.assertEqual(self.run_quietly(str(environment / "bin" / "python"), "-c", PROGRAM).strip(), "1")
        listed = self.run_quietly(str(environment / "bin" / "pip"), "show", "tidepool")
        self.assertIn("Version: 0.", listed)


if __name__ == "__main__":
    unittest.main()
