# SPDX-License-Identifier: Apache-2.0
"""What Tidepool itself takes of a running program, as the kernel counts it: processor time of its threads,
anonymous memory outside the managed space. Read from /proc while the program runs, so it owes Tidepool's own
counts nothing but the names of its threads."""

import json
import os
import re
import subprocess
import threading
import time

from .places import TIDEPOOL
from .tables import median, mib

SAMPLER = "tidepool-migr"  # the thread that samples; it also moves pages
TICK = 1 / os.sysconf("SC_CLK_TCK")
# In smaps' VmFlags: registered with userfaultfd, for missing pages or write protection, as all that is managed is.
MANAGED_FLAGS = {"um", "uw", "ui"}
MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ (\d+) *(.*)")


def thread_seconds(pid, name=SAMPLER):
    """utime + stime of the thread of that name, as getrusage(2) counts them, to a tick; None: there is none."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            continue  # a thread that has just ended
        words = text[text.rindex(")") + 2 :].split()
        if text[text.index("(") + 1 : text.rindex(")")] == name:
            return (int(words[11]) + int(words[12])) * TICK
    return None


def outside(smaps):
    """Anonymous bytes of a smaps text outside managed memory: (in mappings of no file and no name, in others).
    The first is Tidepool's tables, buffers and stacks, with the stacks of the program's own threads; the second is
    the data of the program and of all libraries, and the main stack."""
    unnamed, named = 0, 0
    anonymous, has_name = 0, False
    for line in smaps:
        found = MAPPING.match(line)
        if found:
            anonymous, has_name = 0, found.group(1) != "0" or found.group(2) != ""
        elif line.startswith("Anonymous:"):
            anonymous = int(line.split()[1]) * 1024
        elif line.startswith("VmFlags:") and not MANAGED_FLAGS & set(line.split()[1:]):
            if has_name:
                named += anonymous
            else:
                unnamed += anonymous
    return unnamed, named


def stats(pid):
    """The statistics page of a running program, as `tidepool stat` shows it; None when it has none (any more)."""
    done = subprocess.run(
        [TIDEPOOL, "stat", "--json", str(pid)], capture_output=True, text=True, check=False
    )
    return json.loads(done.stdout) if done.returncode == 0 else None


def memory(pid):
    """What Tidepool takes of a running program's memory; {} if it is no longer there, or not Tidepool's. Walks the
    page tables, which takes milliseconds, or a third of a second where promoted pages lie scattered.
    """
    counted = stats(pid)
    if counted is None or not counted["managed_bytes"]:
        return {}
    began = time.monotonic()
    try:
        with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as file:
            unnamed, named = outside(file)
    except OSError:
        return {}
    if unnamed == 0:  # it has just ended
        return {}
    # The pool of compressed pages is the program's data, within its budget.
    unnamed -= sum(tier["used_bytes"] for tier in counted["tiers"] if tier["kind"] == "compressed")
    return {
        "own_memory_bytes": unnamed,
        "program_data_bytes": named,
        "managed_bytes": counted["managed_bytes"],
        "metadata_share": unnamed / counted["managed_bytes"],
        "look_seconds": round(time.monotonic() - began, 4),
    }


class LateLook(threading.Timer):
    """memory() some seconds after start(), as `seen`."""

    def __init__(self, pid, seconds):
        super().__init__(seconds, self.look)
        self.daemon = True
        self.pid = pid
        self.seen = {}

    def look(self):
        self.seen = memory(self.pid)


class CpuWatch:
    """Processor time between its making and end(), in shares of one core."""

    def __init__(self, pid):
        self.pid = pid
        self.first = self.counts()

    def counts(self):
        counted = stats(self.pid)
        thread = thread_seconds(self.pid)
        return None if counted is None or thread is None else (time.monotonic(), thread, counted)

    def end(self):
        """{} for a program without Tidepool."""
        last = self.counts()
        if self.first is None or last is None:
            return {}
        (began, thread, before), (ended, thread_after, after) = self.first, last
        span = ended - began
        return {
            "sampling_cpu_own": (after["sampling_cpu_seconds"] - before["sampling_cpu_seconds"])
            / span,
            "moving_cpu": (after["moving_cpu_seconds"] - before["moving_cpu_seconds"]) / span,
            "sampler_thread_cpu": (thread_after - thread) / span,
        }


def memory_note(name, runs):
    """One note about runs whose extra["inside"] has a look, or none."""
    looks = [
        run.extra["inside"] for run in runs if run.extra.get("inside", {}).get("managed_bytes")
    ]
    if not looks:
        return []
    own = median([seen["own_memory_bytes"] for seen in looks])
    share = median([seen["metadata_share"] for seen in looks])
    return [
        f"{name}: all memory of Tidepool's own in mid-run (tables, buffers, stacks): {mib(own)}, "
        f"{share:.2%} of what is managed"
    ]
