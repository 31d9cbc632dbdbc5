#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs programs that share host memory with a CUDA device: plain, behind a memory server, and behind a direct tier,
without and with promotions (`pins:never`), and compares what they print.

  run.py --bin DIR [--python PYTHON] [--json] [NAME...]

Without names all are run. Needs a CUDA device, and a PYTHON with PyTorch for CUDA. Fails if a result differs.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BENCH = HERE.parent.parent / "bench"
SECONDS = 240

sys.path.insert(0, str(BENCH))
from harness.places import WORK  # noqa: E402
from harness.running import MemoryServer  # noqa: E402

TRAINING = [str(BENCH / "trainers" / "dlrm.py"), "--device", "cuda", "--steps", "200", "--losses-only"]
PROGRAMS = str(HERE / "programs.py")
WAYS = ("plain", "server", "pool")
# name: (arguments, local memory, options more, ways). What CUDA and torch themselves take, some 250 MiB, is beside it.
CASES = {
    "trainer": (TRAINING, "128M", [], (*WAYS, "pool, pins:never")),
    "trainer, Adagrad, workers": ([*TRAINING, "--optimizer", "adagrad", "--workers", "2"], "256M", [], WAYS),
    "trainer, pages": (TRAINING, "256M", ["--rows", "off"], WAYS),
    "pageable": ([PROGRAMS, "pageable"], "128M", [], WAYS),
    "registered": ([PROGRAMS, "registered"], "96M", [], WAYS),
    "offloaded": ([PROGRAMS, "offloaded"], "128M", [], WAYS),
    "workers": ([PROGRAMS, "workers"], "96M", [], WAYS),
    "unified": ([PROGRAMS, "unified"], "96M", [], WAYS),
}


def run(command, folder):
    """Status, output, seconds, and the statistics of the process itself."""
    environment = dict(os.environ, LC_ALL="C.UTF-8", PYTHONDONTWRITEBYTECODE="1")
    began = time.monotonic()
    try:
        got = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment,
                             timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"status": f"no end within {SECONDS} s", "out": "", "err": "", "seconds": SECONDS, "stats": {}}
    seconds = round(time.monotonic() - began, 2)
    told = pathlib.Path(folder, "stats")
    stats = json.loads(told.read_text()) if told.exists() else {}
    return {"status": got.returncode, "out": got.stdout, "err": got.stderr, "seconds": seconds, "stats": stats}


def prefix_of(way, name, binaries, port):
    if way == "plain":
        return []
    _, dram, more, _ = CASES[name]
    far = f"remote:127.0.0.1:{port}:4G" if way == "server" else "cxl:4G"
    conf = "budget_scope:managed" + (",pins:never" if "pins" in way else "")
    return [f"{binaries}/tidepool", "run", "--dram", dram, "--far", far, "--conf", conf, *more]


def compare(name, options, binaries, port):
    """One row for each way, as soon as it has run."""
    plain = None
    for way in CASES[name][3]:
        prefix = prefix_of(way, name, binaries, port)
        with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
            told = ["--stats", f"{folder}/stats", "--"] if prefix else []
            got = run([*prefix, *told, options.python, *CASES[name][0]], folder)
        plain = plain or got
        same = got["status"] == 0 and got["out"] == plain["out"]
        got["lines"] = sorted({line for line in got["err"].splitlines() if line.startswith("tidepool:")})
        yield {"case": name, "way": way, "result": "same" if same else "DIFFERENT", **got}


def show(row):
    inside = re.search(r"^seconds (.*)", row["err"], re.MULTILINE)
    print(f"{row['case']:<28} {row['way']:<18} {row['seconds']:>8} s  inside {inside[1] if inside else '-':>8}  "
          f"{row['result']}", flush=True)
    for line in row["lines"]:
        print(f"   {line}")
    if row["result"] != "same":
        print(f"   status {row['status']}, {row['out'][-300:]!r}\n   {row['err'][-1500:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if unknown := set(options.names) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))} (known: {', '.join(CASES)})")
    binaries = pathlib.Path(options.bin).resolve()
    bad = 0
    WORK.mkdir(parents=True, exist_ok=True)
    with MemoryServer("8G", binaries.parent) as server:
        for name in options.names or CASES:
            for row in compare(name, options, binaries, server.port):
                bad += row["result"] != "same"
                print(json.dumps(row), flush=True) if options.json else show(row)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
