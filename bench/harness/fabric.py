# SPDX-License-Identifier: Apache-2.0
"""The fabric manager at size: 4,096 hosts, 100,000 regions, a million extents."""

import json
import shutil
import tempfile

from .places import WORK, BenchError, say, tool
from .running import run
from .tables import median, table

WANTED = {"decision": 5.0, "assigns": 500, "list": 300.0}


def one_run():
    folder = tempfile.mkdtemp(prefix="fabric-", dir=WORK)
    try:
        return json.loads(run([tool("fabric_bench"), folder]).stdout)
    except ValueError as error:
        raise BenchError(f"fabric_bench printed no JSON: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(count, _only):
    runs = []
    for number in range(count):
        runs.append(one_run())
        say(f"fabric: round {number + 1}/{count}")

    def middle(read):
        return median([read(one) for one in runs])

    rows = [
        ["decision, p50", f"{middle(lambda r: r['decision_ms']['p50']):.3f} ms", ""],
        [
            "decision, p99",
            f"{middle(lambda r: r['decision_ms']['p99']):.3f} ms",
            f"{WANTED['decision']:g} ms",
        ],
        [
            "durable assigns, 64 callers",
            f"{middle(lambda r: r['assigns_per_second']):.0f} / s",
            f"{WANTED['assigns']} / s",
        ],
        ["one of them, p99", f"{middle(lambda r: r['assign_ms']['p99']):.1f} ms", ""],
        [
            "list of 10,000 regions, without JSON",
            f"{middle(lambda r: r['list_ms']):.1f} ms",
            f"{WANTED['list']:g} ms with it",
        ],
        ["start", f"{middle(lambda r: r['load_seconds']):.1f} s", ""],
        ["  of it, opening and checking the store", f"{middle(lambda r: r['open_seconds']):.1f} s", ""],
        ["memory", f"{middle(lambda r: r['resident_bytes']) / 2**20:.0f} MiB", ""],
    ]
    first = runs[0]
    notes = [
        f"{first['hosts']} hosts, {first['regions']} regions, {first['extents']} extents on "
        f"{first['devices']} emulated pools, free space in as many pieces; median of {count} rounds"
    ]
    return table("fabric manager", ["", "measured", "wanted"], rows, notes), {"runs": runs}
