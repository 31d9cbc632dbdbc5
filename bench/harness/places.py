# SPDX-License-Identifier: Apache-2.0
"""Where things are, and how to say that something is not there."""

import datetime
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TIDEPOOL_BUILD", ROOT / "build" / "release"))
WORK = pathlib.Path(os.environ.get("TIDEPOOL_BENCH_WORK", ROOT / "build" / "bench"))
RESULTS = WORK / "results.json"
TIDEPOOL = BUILD / "bin" / "tidepool"
FABRICMGR = BUILD / "bin" / "fabricmgr"
PYTHON = "/usr/bin/python3"  # Debian's: the one that sees python3-torch


class BenchError(Exception):
    """Something the person who runs the benchmark can mend; the text says what and how."""


class KilledError(BenchError):
    """The program was killed outright, as the kernel does where a memory limit cannot be kept."""


def binary(name, build=None):
    """The path of `tidepool` or `fabricmgr`, of this tree or of another build."""
    return need((build or BUILD) / "bin" / name, "run 'make' first" if build is None else "build it first")


def tool(name):
    """The path of one of bench/*.cc, built."""
    path = BUILD / "bench" / name
    if not path.exists():
        raise BenchError(f"{path} is not built; run 'make bench', or 'make' and then bench/run")
    return path


def need(path, how):
    if not pathlib.Path(path).exists():
        raise BenchError(f"{path} is missing; {how}")
    return path


def say(text):
    """Progress and talk: to stderr, so that stdout holds the tables alone."""
    print(text, file=sys.stderr, flush=True)


def machine():
    """What the figures were taken on, for every table and for results.json."""

    def first(path, prefix):
        try:
            for line in open(path, encoding="utf-8"):
                if line.startswith(prefix):
                    return line.split(":", 1)[1].strip()
        except OSError:
            pass
        return "unknown"

    def git(*words):
        try:
            done = subprocess.run(
                ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
            )
        except OSError:  # no git on a bare machine: the tables say "unknown"
            return ""
        return done.stdout.strip()

    return {
        "cpu": first("/proc/cpuinfo", "model name"),
        "cpus": os.cpu_count(),
        "memory_bytes": int(first("/proc/meminfo", "MemTotal").split()[0]) * 1024,
        "kernel": os.uname().release,
        "commit": (git("rev-parse", "--short", "HEAD") or "unknown")
        + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else ""),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "load_before": os.getloadavg()[0],
    }
