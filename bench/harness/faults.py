# SPDX-License-Identifier: Apache-2.0
"""Latency of a single read that meets far memory, beside the raw 4 KiB round trip taken in the same round; then
what many threads that read far memory at once get done."""

import json

from . import paired
from .places import BenchError, say, tool
from .running import run
from .tables import median, table

SIZE = 512 * 2**20
BUDGET = SIZE // 4
ALLOWED_US = 12  # over the raw round trip, for the p50 of a random fault on the memory server
THREADS = (1, 4, 16, 64)
CLASSES = {"away": "fault", "in_place": "load, in place", "local": "load, local"}


def one_run(way):
    threads = [word for count in THREADS for word in ("--threads", str(count))]
    result = paired.run_way(
        way,
        [tool("fault_latency"), "--size", str(SIZE), *threads],
        BUDGET,
        stats_path=paired.stats_path("faults", way),
    )
    result.extra["latency"] = json.loads(result.stdout)
    return result


def crowd(way, runs):
    """Rows for the passes with many threads, of the kind of read that most were: times, and how many a second."""
    rows = []
    for threads in map(str, THREADS):
        passes = [one[threads] for one in runs]
        kind = max(CLASSES, key=lambda kind: passes[0][kind]["count"])
        times = [f"{median([one[kind][key] for one in passes]):.1f}" for key in ("p50_us", "p99_us")]
        speed = [one[kind]["count"] / one["seconds"] for one in passes]
        row = [paired.label(way), threads, CLASSES[kind], *times, f"{median(speed):.0f}"]
        rows.append(row + [f"{min(speed):.0f}-{max(speed):.0f}"])
    return rows


def measure(count, only):
    ways = paired.choose(only, (*paired.ALL_WAYS, "distant"))
    raw = []

    def one(way):
        if way == ways[0]:  # once a round
            raw.append(json.loads(run([tool("raw_rtt")]).stdout))
            say(f"faults: raw round trip p50 {raw[-1]['p50_us']} us, p99 {raw[-1]['p99_us']} us")
        return one_run(way)

    results, errors = paired.rounds("faults", ways, count, one)
    if not raw:
        raise BenchError("nothing measured")
    raw_p50, raw_p99 = (median([one[key] for one in raw]) for key in ("p50_us", "p99_us"))
    rows = [
        [
            "raw 4 KiB round trip, loopback TCP",
            "",
            str(raw[0]["count"]),
            f"{raw_p50:.1f}",
            f"{raw_p99:.1f}",
            "",
        ]
    ]
    crowd_rows = []
    data = {"raw": raw, "ways": {}, "errors": errors}
    for way, runs in results.items():
        if way in errors or not runs:
            rows.append([paired.label(way), "failed", "", "", "", ""])
            continue
        data["ways"][way] = [one.summary() for one in runs]
        crowd_rows += crowd(way, [one.extra["latency"]["threads"] for one in runs])
        for pattern in ("random", "sequential"):
            for kind, words in {**CLASSES, "all": "every read"}.items():
                cases = [one.extra["latency"][pattern][kind] for one in runs]
                if median([case["count"] for case in cases]) < 100:
                    continue  # too few for a quantile to mean anything
                p50, p99, mean = (
                    median([case[key] for case in cases]) for key in ("p50_us", "p99_us", "mean_us")
                )
                rows.append(
                    [
                        f"{paired.label(way)}, {pattern}",
                        words,
                        f"{median([c['count'] for c in cases]):.0f}",
                        f"{p50:.1f}",
                        f"{p99:.1f}",
                        f"{mean:.1f}",
                    ]
                )
                if way == "remote" and pattern == "random" and kind == "away":
                    data["remote_random_p50_over_raw_us"] = p50 - raw_p50
    notes = [
        f"512 MiB filled, 128 MiB of local memory, 20000 reads of one page each; medians of {count} rounds"
    ]
    over = data.get("remote_random_p50_over_raw_us")
    if over is not None:
        notes.append(
            f"random fault on the memory server: raw round trip + {over:.1f} us (may be {ALLOWED_US} us)"
            + ("" if over <= ALLOWED_US else "  OVER")
        )
    header = ["", "what it met", "count", "p50", "p99", "mean"]
    printed = table("latency of one read (us)", header, rows, notes)
    header = ["", "threads", "what it met", "p50", "p99", "a second", "spread"]
    note = "the same memory and number of random reads, shared among the threads; only the kind that most reads were"
    printed += "\n" + table("many threads at once (us)", header, crowd_rows, [note])
    return printed, data
