# SPDX-License-Identifier: Apache-2.0
"""malloc and free by themselves: glibc, jemalloc, mimalloc and Tidepool with room for everything, one table."""

import glob
import json

from .places import TIDEPOOL, WORK, BenchError, say, tool
from .running import run, tidepool_command
from .tables import geomean, median, table

LIBRARIES = {"jemalloc": "libjemalloc.so.2", "mimalloc": "libmimalloc.so.2*"}


def peers():
    found = {"glibc": None}
    for name, pattern in LIBRARIES.items():
        paths = sorted(glob.glob(f"/usr/lib/*/{pattern}")) + sorted(
            glob.glob(f"/usr/lib/{pattern}")
        )
        if paths:
            found[name] = paths[0]
        else:
            say(f"malloc: {name} is not installed; run packaging/install-deps.sh bench")
    if TIDEPOOL.exists():
        found["tidepool"] = None
    return found


def one_run(name, library):
    """{(pattern, threads, size): nanoseconds for one malloc and free}"""
    command = [tool("malloc_bench"), "--benchmark_format=json"]
    env = {"LD_PRELOAD": library} if library else {}
    stats = WORK / "malloc.stats.json"
    if name == "tidepool":
        command = tidepool_command("100%", [], command, stats)
    result = run(command, env=env)
    times = {}
    for case in json.loads(result.stdout)["benchmarks"]:
        pattern, size = case["name"].split("/")[:2]
        threads = case["threads"]
        times[pattern, threads, int(size)] = 1e9 / case["items_per_second"]
    if not times:
        raise BenchError("the malloc benchmark measured nothing")
    return times


def measure(count, _only):
    names = peers()
    order = list(names)
    runs = {name: [] for name in order}
    errors = {}
    for number in range(count):
        shift = number % len(order)
        for name in order[shift:] + order[:shift]:
            if name in errors:
                continue
            try:
                runs[name].append(one_run(name, names[name]))
                say(f"malloc: round {number + 1}/{count}  {name}")
            except BenchError as error:
                errors[name] = str(error)
                say(f"malloc: {name} FAILED: {error}")
    good = [name for name in order if runs[name] and name not in errors]
    if "glibc" not in good:
        raise BenchError("the malloc benchmark did not run on glibc: " + errors.get("glibc", ""))
    cases = list(runs["glibc"][0])
    middle = {
        name: {case: median([one[case] for one in runs[name]]) for case in cases} for name in good
    }
    rows = [
        [
            f"{pattern}, {threads} thread{'s' * (threads > 1)}, {size} B",
            *(f"{middle[name][pattern, threads, size]:.1f}" for name in good),
        ]
        for pattern, threads, size in cases
    ]
    # Inside each round, then the median of the rounds; below 1 is faster than glibc.
    ratios = {
        name: median(
            [
                geomean([a[case] / b[case] for case in cases])
                for a, b in zip(runs[name], runs["glibc"])
            ]
        )
        for name in good
    }
    rows.append(["geomean of time / glibc's", *(f"{ratios[name]:.3f}" for name in good)])
    notes = [f"nanoseconds for one malloc and its free, median of {count} rounds; lower is better"]
    notes += [f"{name} FAILED: {text.splitlines()[0]}" for name, text in errors.items()]
    data = {
        "ratio_to_glibc": ratios,
        "errors": errors,
        "nanoseconds": {
            name: {"/".join(map(str, case)): value for case, value in middle[name].items()}
            for name in good
        },
    }
    return table("malloc + free", ["", *good], rows, notes), data
