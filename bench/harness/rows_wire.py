# SPDX-License-Identifier: Apache-2.0
"""Rows of embedding tables from a memory server, beside plain TCP with the same messages and a local gather."""

import json

from .places import BenchError, say, tool
from .running import MemoryServer, run
from .tables import median, table

REGION = 2 * 2**30
ROWS, BATCHES, IN_FLIGHT = (64, 256, 1024), (100, 256, 2048), (1, 8)
WANTED_MROWS = 6.0  # of 256 bytes, in batches of 256 and more, several in flight
WANTED_P99_US = 500  # of one request of 100 rows, alone
KINDS = ("read", "raw-read", "write", "raw-write", "gather")


def words(numbers):
    return ",".join(str(number) for number in numbers)


def one_run():
    with MemoryServer("2G") as server:
        command = [tool("row_fetch"), "--server", f"127.0.0.1:{server.port}"]
        command += ["--region", str(REGION), "--row", words(ROWS), "--batch", words(BATCHES)]
        command += ["--in-flight", words(IN_FLIGHT), "--seconds", "0.3"]
        lines = run(command).stdout.splitlines()
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise BenchError(f"row_fetch printed no JSON: {error}") from error


def measure(count, _only):
    runs = []
    for number in range(count):
        runs.append(one_run())
        say(f"rows-wire: round {number + 1}/{count}")
    places = {}
    for one in runs:
        for line in one:
            key = (line["row"], line["batch"], line["in_flight"], line["kind"])
            places.setdefault(key, []).append(line)

    def cell(shape, kind, what, digits):
        found = places.get((*shape, kind))
        return f"{median([line[what] for line in found]):.{digits}f}" if found else ""

    rows = []
    shapes = [(row, batch, deep) for row in ROWS for batch in BATCHES for deep in IN_FLIGHT]
    for shape in shapes:
        speeds = [cell(shape, kind, "mrows_s", 2) for kind in KINDS]
        times = [
            cell(shape, kind, what, 0) for kind in ("read", "write") for what in ("p50_us", "p99_us")
        ]
        rows.append(["{} B x {}, {} in flight".format(*shape)] + speeds + times)
    header = ["million rows/s", "read", "plain TCP", "write", "plain TCP", "local copy"]
    header += ["read p50", "p99 us", "write p50", "p99 us"]
    notes = [
        f"random rows of {REGION >> 30} GiB, one client thread; medians of {count} rounds",
        f"wanted: {WANTED_MROWS:g} million rows/s of 256 bytes in batches of 256 and more, p99 of 100 rows "
        f"under {WANTED_P99_US} us",
    ]
    return table("rows from a memory server", header, rows, notes), {"runs": runs}
