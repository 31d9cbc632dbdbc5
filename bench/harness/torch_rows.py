# SPDX-License-Identifier: Apache-2.0
"""The recommendation model of bench/trainers with its tables by rows, unchanged: every optimizer whose states are rows,
batches made by forked workers, and a tenth of its memory instead of a quarter."""

from typing import NamedTuple

from . import paired, torch_model
from .places import BenchError, say
from .tables import mib, spread, table

WAYS = ("plain", "direct", "remote")
FAR_SIZE = "4G"  # SparseAdam's two states are as large as the tables
STEPS = ("--steps", "300")


class Case(NamedTuple):
    about: str
    options: tuple = ()
    share: float = 0.25  # of the plain run's peak RSS: the budget


CASES = {
    "sgd": Case("SGD"),
    "tenth": Case("SGD, a tenth", share=0.1),
    "adagrad": Case("Adagrad", ("--optimizer", "adagrad")),
    "sparse_adam": Case("SparseAdam", ("--optimizer", "sparse_adam")),
    "workers": Case("SGD, 2 forked workers", ("--workers", "2")),
}


def measure_one(name, case, count, ways):
    options = (*STEPS, *case.options)
    size, reference = torch_model.footprint(options)
    budget = int(size * case.share)
    say(f"torch-rows {name}: footprint {mib(size)}, budget {mib(budget)}")
    results, errors = paired.rounds(
        f"torch-rows {name}", ways, count, lambda way: torch_model.one_run(way, budget, options, FAR_SIZE)
    )
    same = torch_model.same_losses(results, reference)
    row = [case.about, mib(size), mib(budget)]
    training = {}
    for way in ways:
        runs = results[way]
        if way in errors or not runs:
            row.append("failed")
            continue
        seconds = [run.extra["train_seconds"] for run in runs]
        training[way] = seconds
        times = [run.seconds for run in runs]
        if way == "plain":
            row.append(f"{paired.median(times):.1f} s")
            continue
        whole = paired.ratios(results, way)
        parts = [one / plain for one, plain in zip(seconds, training["plain"])]
        row.append(
            f"{paired.median(whole):.2f} ({spread(whole)}); training {paired.median(parts):.2f} ({spread(parts)})"
            + ("" if same[way] else " DIFFERENT")
        )
    for runs in results.values():
        for run in runs:
            run.extra.pop("losses")
    _, data = paired.report(name, results, errors, budget, same)
    return row, {"about": case.about, "footprint_bytes": size, "train_seconds": training, **data}


def measure(count, only, names=None):
    ways = paired.choose(["plain", *(only or WAYS[1:])], WAYS)
    if unknown := set(names or ()) - set(CASES):
        raise BenchError(f"no case called {', '.join(sorted(unknown))} (known: {', '.join(CASES)})")
    rows, data = [], {}
    for name in names or CASES:
        row, data[name] = measure_one(name, CASES[name], count, ways)
        rows.append(row)
    notes = [
        f"300 steps; {count} rounds, order rotated; times of plain's, inside a round: the whole run, and its training",
        "all losses compared with the plain run's to the last digit",
    ]
    header = ["", "footprint", "budget", *ways]
    return table("PyTorch recommendation model, by rows", header, rows, notes), {"cases": data}
