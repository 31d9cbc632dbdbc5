# SPDX-License-Identifier: Apache-2.0
"""The PyTorch recommendation model of bench/trainers: time, losses to the last digit, peak local memory."""

import json
import os
import subprocess

from . import paired
from .places import PYTHON, ROOT, BenchError, say
from .tables import mib

SHARE = 0.25  # of the plain run's peak RSS: the budget
COMMAND = [PYTHON, str(ROOT / "bench" / "trainers" / "dlrm.py")]


def one_run(way, budget, options=(), far_size=paired.FAR_SIZE):
    result = paired.run_way(
        way,
        [*COMMAND, *options],
        budget,
        far_size=far_size,
        stats_path=paired.stats_path("torch", way),
        env={"PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        said = json.loads(result.stdout)
    except ValueError:
        raise BenchError(f"the trainer printed no result: {result.stdout[-200:]!r}") from None
    result.extra.update(
        {key: said[key] for key in ("losses", "steps", "steps_per_second", "train_seconds")}
    )
    return result


def footprint(options=()):
    found = subprocess.run(
        [PYTHON, "-c", "import torch, numpy"],
        env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        check=False,
    )
    if found.returncode != 0:
        raise BenchError("PyTorch is not installed; run packaging/install-deps.sh bench")
    say("torch: a plain run first, to learn the footprint")
    result = one_run("plain", None, options)
    return result.watch["peak_rss_bytes"], result.extra["losses"]


def same_losses(results, reference):
    return {
        way: all(run.extra["losses"] == reference for run in runs)
        for way, runs in results.items()
        if runs
    }


def measure(count, only):
    ways = paired.choose(only, paired.ALL_WAYS, paired.DISK_WAYS)
    size, reference = footprint()
    budget = int(size * SHARE)
    say(f"torch: footprint {mib(size)}, budget {mib(budget)}")
    results, errors = paired.rounds("torch", ways, count, lambda way: one_run(way, budget))
    same = same_losses(results, reference)
    speed = {
        way: paired.median([run.extra["steps_per_second"] for run in runs])
        for way, runs in results.items()
        if runs
    }
    for runs in results.values():
        for run in runs:
            run.extra["losses"] = [run.extra["losses"][0], "...", run.extra["losses"][-1]]
    printed, data = paired.report(
        "PyTorch recommendation model (8 tables, 1 GB, Zipf 1.05), a quarter of its memory",
        results,
        errors,
        budget,
        same,
        [
            f"footprint {mib(size)}; {len(reference)} losses compared to the last digit, last {reference[-1]}",
            "steps/s while training: "
            + ", ".join(f"{way} {value:.1f}" for way, value in speed.items()),
        ],
    )
    data.update({"footprint_bytes": size, "losses": reference, "steps_per_second": speed})
    return printed, data
