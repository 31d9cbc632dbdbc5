# SPDX-License-Identifier: Apache-2.0
"""Embedding tables in PyTorch: tidepool.torch in every kind of tier beside torch.nn.EmbeddingBag all in DRAM."""

import json
import os

from .places import BUILD, PYTHON, ROOT, BenchError, say
from .running import MemoryServer, run
from .tables import gib, median, table

FAR_SIZE = "5G"
# Adagrad's state is as large as the rows: half of them, so that torch and Tidepool fit into memory together.
KINDS = {
    "forward": ("sum-bag forward", []),
    "sgd": ("training step, SGD", []),
    "adagrad": ("training step, Adagrad, 1 million rows a table", ["--rows", "1000000"]),
}
TIERS = ("local", "direct", "remote")
LABEL = {
    "torch-1": "torch.nn.EmbeddingBag, 1 thread",
    "torch-2": "torch.nn.EmbeddingBag, 2 threads",
    "local": "tidepool, local memory",
    "direct": "tidepool, emulated CXL pool, 10 % DRAM",
    "remote": "tidepool, memory server, 10 % DRAM",
}


def one_run(kind, far, rounds):
    command = [PYTHON, str(ROOT / "bench" / "torch_tables.py"), kind, "--rounds", str(rounds), *KINDS[kind][1]]
    if far:
        command += ["--far", far]
    path = os.pathsep.join([str(BUILD / "python"), os.environ.get("PYTHONPATH", "")])
    said = run(command, env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}).stdout
    try:
        return json.loads(said)
    except ValueError:
        raise BenchError(f"torch_tables.py printed no result: {said[-200:]!r}") from None


def in_tier(kind, tier, rounds):
    if tier == "remote":
        with MemoryServer(FAR_SIZE) as server:
            return one_run(kind, server.spec(), rounds)
    return one_run(kind, f"cxl:{FAR_SIZE}" if tier == "direct" else None, rounds)


def best_peer(seconds):
    """torch's better number of threads in this run."""
    return min(("torch-1", "torch-2"), key=lambda way: median(seconds[way]))


def lines_of(tier, result):
    """A row of the table for every way; ratios of speeds are taken inside a round."""
    seconds, rows = result["seconds_a_batch"], result["rows_a_batch"]
    peer = best_peer(seconds)
    for way, times in seconds.items():
        ratios = [base / one for base, one in zip(seconds[peer], times)]
        if way.startswith("torch"):
            label = f"{LABEL[way]} (beside {tier})" + (" *" if way == peer else "")
        else:
            label = LABEL[tier] + (", 4 batches announced" if way.endswith("ahead") else "")
        yield [
            label,
            f"{median(times) * 1e3:.1f} ms",
            f"{min(times) * 1e3:.1f}-{max(times) * 1e3:.1f}",
            f"{rows / median(times) / 1e6:.1f}",
            f"{median(ratios):.2f}x",
            f"{min(ratios):.2f}-{max(ratios):.2f}",
            "" if way.startswith("torch") or tier == "local" else f"{result['served_from_dram'] * 100:.1f} %",
        ]


def measure(count, only):
    printed, data = [], {}
    tiers = [tier for tier in TIERS if only is None or tier in only]
    if not (BUILD / "python" / "tidepool").exists():
        raise BenchError("the Python package is not built; run packaging/install-deps.sh bench, then make")
    for kind, (title, _) in KINDS.items():
        rows, notes = [], []
        for tier in tiers:
            result = in_tier(kind, tier, count)
            data.setdefault(kind, {})[tier] = result
            rows += lines_of(tier, result)
            times = {way: f"{median(one) * 1e3:.1f} ms" for way, one in result["seconds_a_batch"].items()}
            say(f"tables: {kind}, {tier}: " + ", ".join(f"{way} {text}" for way, text in times.items()))
            settings = result["settings"]
            if tier != "local":
                notes.append(
                    f"{LABEL[tier]}: {gib(result['dram_bytes'])} of local memory, metadata "
                    f"{gib(result['metadata_bytes'])} of it"
                )
        notes += [
            f"{settings['tables']} tables x {settings['rows']:,} rows x {settings['dim']} float32, "
            f"{settings['bags']} bags of {settings['length']} rows a table and batch; Zipf {settings['skew']}",
            f"{count} rounds of {settings['batches']} batches, order rotated; every batch is new; speed "
            "against torch's better number of threads (*), inside a round",
        ]
        header = ["", "a batch", "spread", "M rows/s", "vs torch", "spread", "from DRAM"]
        printed.append(table(title, header, rows, notes))
    return "\n".join(printed), data
