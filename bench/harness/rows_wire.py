# SPDX-License-Identifier: Apache-2.0
"""Rows of embedding tables from a memory server, beside plain TCP with the same messages and a local gather;
and requests to a table of which a small part comes from there."""

import json

from .places import BenchError, say, tool
from .running import MemoryServer, run
from .tables import median, table

REGION = 2 * 2**30
ROWS, BATCHES, IN_FLIGHT = (64, 256, 1024), (100, 256, 2048), (1, 8)
WANTED_MROWS = 6.0  # of 256 bytes, in batches of 256 and more, several in flight
WANTED_P99_US = 500  # of one request of 100 rows, alone
REQUEST, HITS, WANTED_REQUEST_MS = 2000, 0.95, 0.5  # p99 of a look-up of so many rows, this share of them in DRAM
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


def requests():
    """One look-up after the other in a table of 2,000,000 rows of 256 bytes, a tenth of them in DRAM."""
    with MemoryServer("2G") as server:
        command = [tool("row_request"), "--server", f"127.0.0.1:{server.port}"]
        command += ["--request", str(REQUEST), "--hits", str(HITS)]
        return json.loads(run(command).stdout)


def request_table(runs):
    shown = ("hits", "p50_ms", "p99_ms", "p999_ms", "longest_ms")
    rows = [
        [f"round {i + 1}", f"{one['hits'] * 100:.2f}"] + [f"{one[name]:.3f}" for name in shown[1:]]
        for i, one in enumerate(runs)
    ]
    medians = [median([one[name] for one in runs]) for name in shown]
    rows.append(["median", f"{medians[0] * 100:.2f}"] + [f"{value:.3f}" for value in medians[1:]])
    header = ["", "% in DRAM", "p50 ms", "p99 ms", "p99.9 ms", "longest"]
    notes = [f"wanted: p99 of {REQUEST} rows at {HITS * 100:g} % hits under {WANTED_REQUEST_MS} ms"]
    return table(f"a look-up of {REQUEST} rows of 256 bytes", header, rows, notes)


def measure(count, _only):
    runs, asked = [], []
    for number in range(count):
        runs.append(one_run())
        asked.append(requests())
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
    printed = table("rows from a memory server", header, rows, notes) + "\n" + request_table(asked)
    return printed, {"runs": runs, "requests": asked}
