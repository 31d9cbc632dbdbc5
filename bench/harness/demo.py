# SPDX-License-Identifier: Apache-2.0
"""`make demo`: the main promise, once, in a form that can be read at a glance."""

import os
import sys

from . import corpus, fasttext, paired, running
from .places import BenchError, machine, say
from .tables import heading, mib, table

WAYS = ("plain", "direct", "remote")
NAME = {
    "plain": "plain",
    "direct": "tidepool, CXL pool (emulated)",
    "remote": "tidepool, memory server",
}
BAR = 44


def bars(title, values, text):
    longest = max(values.values())
    lines = [title]
    for way, value in values.items():
        lines.append(
            f"  {NAME[way]:<30} {'#' * max(1, round(BAR * value / longest)):<{BAR}} {text(value)}"
        )
    return "\n".join(lines) + "\n"


def verdict(runs, budget):
    """Every promise the demo makes, and whether it was kept."""
    model = runs["plain"].extra["model"]
    kept = []
    for way in ("direct", "remote"):
        kept.append(
            (
                f"{NAME[way]}: the model's bytes are the plain run's",
                runs[way].extra["model"] == model,
            )
        )
        kept.append(
            (
                f"{NAME[way]}: local memory stayed within {mib(budget)} + 5 % + 16 MiB",
                runs[way].watch["peak_anon_bytes"] <= paired.allowance(budget),
            )
        )
    return kept


def demo():
    text, digest = corpus.make()
    say(
        f"fasttext learns word vectors from {os.path.getsize(text) / 1e6:.0f} MB of the Linux documentation "
        f"(sha256 {digest[:12]}), three times:"
    )
    runs, budget = {}, None
    for way in WAYS:
        limit = "all its memory" if budget is None else f"{mib(budget)} of local memory"
        say(f"  {NAME[way]}, {limit} ...")
        runs[way] = fasttext.one_run(way, text, budget)
        say(
            f"    {runs[way].seconds:.1f} s, peak local memory {mib(runs[way].watch['peak_anon_bytes'])}"
        )
        if budget is None:
            budget = int(runs[way].watch["peak_rss_bytes"] * fasttext.SHARE)
    plain = runs["plain"].seconds
    print(heading(machine()))
    print(
        table(
            "fasttext skipgram, unchanged: a quarter of its memory",
            ["", "time", "vs plain", "peak local memory"],
            [
                [
                    NAME[way],
                    f"{run.seconds:.1f} s",
                    f"{run.seconds / plain:.2f}x",
                    mib(run.watch["peak_anon_bytes"]),
                ]
                for way, run in runs.items()
            ],
        )
    )
    print(
        bars(
            "peak local memory",
            {way: run.watch["peak_anon_bytes"] for way, run in runs.items()},
            mib,
        )
    )
    print(
        bars(
            "time", {way: run.seconds for way, run in runs.items()}, lambda value: f"{value:.1f} s"
        )
    )
    print(f"  {fasttext.ZEROS}\n")
    kept = verdict(runs, budget)
    for promise, true in kept:
        print(f"  {'ok  ' if true else 'FAIL'}  {promise}")
    print(
        "\nThe CXL pool is emulated: a memory file on this machine, used in place as a CXL pool is."
    )
    return 0 if all(true for _, true in kept) else 1


def entry():
    running.turn_sigterm_into_exit()
    try:
        sys.exit(demo())
    except BenchError as error:
        say(f"demo: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
