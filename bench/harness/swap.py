# SPDX-License-Identifier: Apache-2.0
"""The kernel's own answer, as a peer: a cgroup-v1 memory limit, and swap on a device (zram.py, nbd.py).

Needs root and the cgroup-v1 memory controller. Swap is the whole machine's, so only one such peer runs at a time:
a lock file says so. Whatever ends the harness, swap, device and cgroup are taken away again: here on any exception,
and at the next start if the harness was killed outright.
"""

import fcntl
import os
import pathlib
import subprocess
import time

from .places import BenchError, say

CONTROLLER = pathlib.Path("/sys/fs/cgroup/memory")
PREFIX = "tidepool-bench-"
LOCK = pathlib.Path("/run/tidepool-bench-zram.lock")
SIZE_GIB = 4


def in_use(device):
    with open("/proc/swaps", encoding="utf-8") as file:
        return any(line.split()[0] == str(device) for line in file.readlines()[1:])


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class Swap:
    """Context manager: `with Zram(limit) as peer: run(..., cgroup=peer.cgroup)`. A kind of device says what is
    missing for it, clears what a killed harness left of it, sets itself up, and down."""

    name = ""

    def __init__(self, limit_bytes):
        self.limit = int(limit_bytes)
        self.cgroup = CONTROLLER / f"{PREFIX}{os.getpid()}"
        self.device = None  # once it is set up, or about to be
        self.lock = None

    @classmethod
    def why_not(cls):
        """None when the peer can run here, else one line saying what is missing."""
        if os.geteuid() != 0:
            return "needs root (swap and a memory limit)"
        if not (CONTROLLER / "memory.limit_in_bytes").exists():
            return f"no cgroup-v1 memory controller at {CONTROLLER}"
        return cls.missing()

    def __enter__(self):
        missing = self.why_not()
        if missing:
            raise BenchError(f"{self.name} peer: {missing}; leave it out with --only plain,direct,remote")
        self.lock = open(LOCK, "a+", encoding="ascii")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"{self.name}: another benchmark run is using swap; waiting for it to end")
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        try:
            for left in CONTROLLER.glob(PREFIX + "*"):
                if not pathlib.Path("/proc", left.name[len(PREFIX) :]).exists():
                    _remove_cgroup(left)
            for kind in Swap.__subclasses__():
                kind.clear_leftovers()
            self.set_up()
            command("mkswap", str(self.device))
            command("swapon", "--priority", "100", str(self.device))
            self.cgroup.mkdir()
            (self.cgroup / "memory.limit_in_bytes").write_text(str(self.limit))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.cgroup.exists():
            _remove_cgroup(self.cgroup)
        if self.device is not None and in_use(self.device):
            command("swapoff", str(self.device))
        self.set_down()
        self.lock.close()

    def figures(self):
        """How much the program was charged."""
        peak = int((self.cgroup / "memory.max_usage_in_bytes").read_text())
        return {"limit_bytes": self.limit, "peak_charged_bytes": peak}


def _remove_cgroup(path):
    """The last process may take a moment to be gone; nobody else is ever killed for it."""
    for attempt in range(100):
        try:
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if attempt == 99:
                raise BenchError(
                    f"cannot remove the cgroup {path}: a process is still in it"
                ) from None
            time.sleep(0.1)
