# SPDX-License-Identifier: Apache-2.0
"""Plain-text tables, and the few statistics they need."""

import math
import statistics


def table(title, header, rows, notes=()):
    """Left column flush left, the others flush right."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [header] + rows) for i in range(len(header))]

    def line(row):
        cells = [row[0].ljust(widths[0])] + [
            cell.rjust(width) for cell, width in zip(row[1:], widths[1:])
        ]
        return "  " + "  ".join(cells).rstrip()

    text = [title, line(header), "  " + "  ".join("-" * width for width in widths)]
    text += [line(row) for row in rows] + ["  " + note for note in notes]
    return "\n".join(text) + "\n"


def heading(machine):
    return (
        f"machine {machine['cpus']} x {machine['cpu']}, {gib(machine['memory_bytes'])}, kernel {machine['kernel']}\n"
        f"commit {machine['commit']}, {machine['date']}, load average before {machine['load_before']:.2f}\n"
    )


def gib(count):
    return f"{count / 2**30:.1f} GiB"


def mib(count):
    return f"{count / 2**20:.0f} MiB"


def spread(values):
    return f"{min(values):.2f}-{max(values):.2f}"


def median(values):
    return statistics.median(values)


def geomean(values):
    return math.exp(sum(math.log(value) for value in values) / len(values))
