#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run.py NAME WAY: a program of bench/harness/programs.py in its short form, plain and then that WAY (direct,
remote) in a quarter of its memory. Fails if the result is another, if the program went over its budget, or if
nothing went far. TIDEPOOL_BUILD names the build; what is written goes to a folder of its own."""

import os
import sys
import tempfile


def far_bytes(stats):
    return stats["demoted_bytes"] + sum(
        tier["writes_bytes"] + tier["used_bytes"] for tier in stats["tiers"][1:]
    )


def main(name, way):
    from harness import programs, running
    from harness.tables import mib

    running.turn_sigterm_into_exit()
    row, data = programs.measure_one(name, programs.SHORT[name], 1, ["plain", way])
    print(*row, sep=" | ")
    if "error" in data["ways"][way]:
        return f"{way} failed: {data['ways'][way]['error']}"
    result = data["ways"][way]
    if not result["same_result"] or result["within_budget"] is False:
        return f"{way}: another result, or over its budget"
    stats = result["runs"][0]["stats"]
    if far_bytes(stats) == 0 or stats["errors"]:
        return f"{way}: {mib(far_bytes(stats))} went far; errors: {stats['errors']}"
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        os.environ["TIDEPOOL_BENCH_WORK"] = folder
        sys.exit(main(*sys.argv[1:]))
