# SPDX-License-Identifier: Apache-2.0
"""The kernel's own answer, as a peer: a cgroup-v1 memory limit, and swap on a compressed RAM disk (zram).

Needs root, /dev/zram0 and the cgroup-v1 memory controller. Only one user of the zram device at a time: a lock
file says so. Whatever ends the harness, swap and cgroup are taken away again: here on any exception, and at
the next start if the harness was killed outright.
"""

import fcntl
import os
import pathlib
import subprocess
import time

from .places import BenchError, say

DEVICE = pathlib.Path("/dev/zram0")
SYSFS = pathlib.Path("/sys/block/zram0")
CONTROLLER = pathlib.Path("/sys/fs/cgroup/memory")
PREFIX = "tidepool-bench-"
LOCK = pathlib.Path("/run/tidepool-bench-zram.lock")


def why_not():
    """None when the peer can run here, else one line saying what is missing."""
    if os.geteuid() != 0:
        return "needs root (swap and a memory limit)"
    if not DEVICE.exists():
        return f"no {DEVICE} (modprobe zram)"
    if not (CONTROLLER / "memory.limit_in_bytes").exists():
        return f"no cgroup-v1 memory controller at {CONTROLLER}"
    return None


def _in_use():
    return any(
        line.split()[0] == str(DEVICE)
        for line in open("/proc/swaps", encoding="utf-8").readlines()[1:]
    )


def _command(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


class Zram:
    """Context manager: `with Zram(limit) as peer: run(..., cgroup=peer.cgroup)`."""

    def __init__(self, limit_bytes, size="4G"):
        self.limit = int(limit_bytes)
        self.size = size
        self.cgroup = CONTROLLER / f"{PREFIX}{os.getpid()}"
        self.lock = None
        self.ours = False

    def __enter__(self):
        missing = why_not()
        if missing:
            raise BenchError(f"zram peer: {missing}; leave it out with --only plain,direct,remote")
        self.lock = open(LOCK, "a+", encoding="ascii")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("zram: another benchmark run is using it; waiting for it to end")
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        try:
            self._clear_leftovers()
            self._mark("ours")
            self.ours = True
            (SYSFS / "reset").write_text("1")
            (SYSFS / "disksize").write_text(self.size)
            _command("mkswap", str(DEVICE))
            _command("swapon", "--priority", "100", str(DEVICE))
            self.cgroup.mkdir()
            (self.cgroup / "memory.limit_in_bytes").write_text(str(self.limit))
        except BaseException:
            self.__exit__()
            raise
        return self

    def _mark(self, text):
        self.lock.seek(0)
        self.lock.truncate()
        self.lock.write(text)
        self.lock.flush()

    def _clear_leftovers(self):
        """What a killed harness left: its cgroups (empty by now), and swap that the lock file says was ours."""
        for left in CONTROLLER.glob(PREFIX + "*"):
            if not pathlib.Path("/proc", left.name[len(PREFIX) :]).exists():
                _remove_cgroup(left)
        self.lock.seek(0)
        left_by_us = self.lock.read() == "ours"
        if _in_use():
            if not left_by_us:
                raise BenchError(
                    f"zram peer: {DEVICE} is already in use as swap; 'swapoff {DEVICE}' first"
                )
            _command("swapoff", str(DEVICE))
        elif (SYSFS / "initstate").read_text().strip() == "1" and not left_by_us:
            raise BenchError(
                f"zram peer: {DEVICE} is set up for something else; 'zramctl --reset {DEVICE}' first"
            )

    def __exit__(self, *_):
        if self.cgroup.exists():
            _remove_cgroup(self.cgroup)
        if self.ours:
            if _in_use():
                _command("swapoff", str(DEVICE))
            (SYSFS / "reset").write_text("1")
            self._mark("")
            self.ours = False
        self.lock.close()

    def figures(self):
        """How much it swapped, and how far that was compressed."""
        words = (SYSFS / "mm_stat").read_text().split()
        return {
            "limit_bytes": self.limit,
            "algorithm": _algorithm(),
            "peak_charged_bytes": int((self.cgroup / "memory.max_usage_in_bytes").read_text()),
            "compressed_peak_bytes": int(words[4]),
        }


def _algorithm():
    text = (SYSFS / "comp_algorithm").read_text()
    return text[text.find("[") + 1 : text.find("]")]


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
