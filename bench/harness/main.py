# SPDX-License-Identifier: Apache-2.0
"""bench/run: which benchmarks, how many rounds, which ways; tables to stdout, results.json to build/bench."""

import argparse
import importlib
import json
import os
import sys

from . import running, tables
from .places import RESULTS, WORK, BenchError, machine, say

BENCHMARKS = {
    "fasttext": "an embedding trainer, unchanged, in a quarter of its memory",
    "fasttext-full": "the same with ten threads, which leave no zeros in its matrix (not part of all)",
    "torch": "a PyTorch recommendation model, unchanged, in a quarter of its memory",
    "torch-rows": "the same by rows: SGD, Adagrad, SparseAdam, forked workers, a tenth of its memory (not part of all)",
    "gups": "random updates with a hot set that moves, at 20 % DRAM",
    "malloc": "malloc and free against glibc, jemalloc and mimalloc",
    "faults": "fault latency, and the raw round trip it is measured against",
    "rows-wire": "rows of embedding tables from a memory server, beside plain TCP",
    "tables": "embedding tables in PyTorch, in every kind of tier, beside torch.nn.EmbeddingBag",
    "tensors": "tensors put to and got from far tiers, beside a plain copy and plain TCP",
    "fits": "what it costs when everything fits",
    "fabric": "the fabric manager with 100,000 regions: decisions, durable assigns, lists, memory",
    "fabric-api": "the fabric manager's API: agents over TLS, assignments, lists",
    "programs": "programs of Debian, unchanged, in a quarter of their memory (not part of all)",
}
MODULES = {"torch": "torch_model", "fasttext-full": "fasttext_full", "fabric-api": "fabric_api", "rows-wire": "rows_wire", "tables": "torch_tables",
           "tensors": "tensor_copies", "torch-rows": "torch_rows"}


def parse(arguments):
    about = "\n".join(f"  {name:<10} {text}" for name, text in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="bench/run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Tidepool's measurements, each paired with its peers in one run.",
        epilog="benchmarks:\n" + about + "\n  all        all of them, in this order",
    )
    parser.add_argument("benchmark", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="paired rounds (5)")
    parser.add_argument("--only", metavar="WAYS", help="some of plain,direct,remote,zram,nbd,equal (gups: no nbd, equal; faults: distant, too; tables: local,direct,remote); +SETTING and @BUILD may follow: remote+foretell:auto@../before/build/release")
    parser.add_argument("--programs", metavar="NAMES", help="some of those that `programs` runs, or of the cases of torch-rows")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.programs and options.benchmark not in ("programs", "torch-rows"):
        parser.error("--programs goes with the benchmarks programs and torch-rows")
    return options


def keep(name, data, about):
    """Each benchmark is a section of results.json with its own machine, commit and date."""
    try:
        whole = json.loads(RESULTS.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        whole = {}
    whole.setdefault("schema", 1)
    whole.setdefault("benchmarks", {})[name] = {"machine": about, **data}
    partial = RESULTS.with_suffix(f".{os.getpid()}.part")
    partial.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    partial.replace(RESULTS)


def failures_in(data):
    """Whether, at any depth of the data, a way of running failed, gave another result or went over its budget."""
    if isinstance(data, list):
        return any(map(failures_in, data))
    if not isinstance(data, dict):
        return False
    broken = data.get("error") or data.get("errors") or data.get("same_result") is False
    return (
        bool(broken)
        or data.get("within_budget") is False
        or any(failures_in(value) for key, value in data.items() if key != "stats")
    )


def main(arguments=None):
    options = parse(arguments)
    running.turn_sigterm_into_exit()
    WORK.mkdir(parents=True, exist_ok=True)
    only = options.only.split(",") if options.only else None
    about = machine()
    if not options.json:
        print(tables.heading(about), flush=True)
    failed = []
    in_all = [name for name in BENCHMARKS if name not in ("programs", "fasttext-full", "torch-rows")]
    for name in in_all if options.benchmark == "all" else [options.benchmark]:
        try:
            module = importlib.import_module(f".{MODULES.get(name, name)}", __package__)
            more = {"names": options.programs.split(",")} if options.programs else {}
            printed, data = module.measure(options.rounds, only, **more)
        except BenchError as error:
            say(f"{name}: {error}")
            failed.append(name)
            keep(name, {"error": str(error)}, about)
            continue
        print(json.dumps({"machine": about, **data}) if options.json else printed, flush=True)
        keep(name, data, about)
        if failures_in(data):
            failed.append(name)
    say(f"results: {RESULTS}")
    if failed:
        say(f"failed in whole or in part (see above): {', '.join(failed)}")
    return 1 if failed else 0


def entry():
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
