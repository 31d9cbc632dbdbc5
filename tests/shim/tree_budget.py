#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One budget for a program and all the programs it starts: tree_budget.py TIDEPOOL WRITER.

A shell under `tidepool run` starts three writers, each of which wants most of the budget. Their
anonymous memory together, as the kernel counts it, must come to lie within the budget and stay there;
the test's own time-out is the limit for that. When two of them are gone, the third gets the room.
"""

import os
import signal
import subprocess
import sys
import time

DRAM_MIB = 64
# What may be taken while limits are being set: they are 50 times a second.
TOLERANCE_MIB = 8
WRITERS = 3


def tree(pid):
    """The process and all its descendants."""
    found = [pid]
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
                for child in children.read().split():
                    found += tree(int(child))
    except OSError:
        pass
    return found


def anonymous_mib(pid):
    """Anonymous memory of one process; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0


def await_within(root, least, writers):
    """Waits for twenty looks in a row at which the tree holds between `least` and the budget."""
    quiet, most = 0, 0
    while quiet < 20:
        pids = tree(root)
        held = sum(anonymous_mib(pid) for pid in pids)
        within = least <= held <= DRAM_MIB + TOLERANCE_MIB and len(pids) == writers + 1
        quiet, most = (quiet + 1, max(most, held)) if within else (0, 0)
        time.sleep(0.05)
    print(f"{writers} writers and a shell hold at most {most:.1f} MiB of {DRAM_MIB}")


def main():
    tidepool, writer = sys.argv[1:]
    script = " & ".join([f"{writer} 48"] * WRITERS) + " & wait"
    shell = subprocess.Popen([tidepool, "run", "--dram", f"{DRAM_MIB}M", "--far", "cxl:1G", "--", "/bin/sh",
                              "-c", script], start_new_session=True)
    try:
        await_within(shell.pid, DRAM_MIB / 2, WRITERS)
        for pid in tree(shell.pid)[2:]:
            os.kill(pid, signal.SIGTERM)
        await_within(shell.pid, 44, 1)
        os.kill(tree(shell.pid)[1], signal.SIGTERM)
        return shell.wait()
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()


if __name__ == "__main__":
    sys.exit(main())
