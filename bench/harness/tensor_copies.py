# SPDX-License-Identifier: Apache-2.0
"""Tensors put to and got from far tiers, beside a plain copy (emulated pool) and plain TCP (memory server)."""

import json
import os

from .places import BUILD, PYTHON, ROOT, BenchError, say
from .running import MemoryServer, run
from .tables import median, table

TIERS = ("direct", "remote")


def one_run(far, rounds):
    command = [PYTHON, str(ROOT / "bench" / "tensor_copies.py"), "--far", far, "--rounds", str(rounds)]
    path = os.pathsep.join([str(BUILD / "python"), os.environ.get("PYTHONPATH", "")])
    said = run(command, env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}).stdout
    try:
        return json.loads(said)
    except ValueError:
        raise BenchError(f"tensor_copies.py printed no result: {said[-200:]!r}") from None


def in_tier(tier, rounds):
    if tier == "remote":
        with MemoryServer("2G") as server:
            return one_run(server.spec(), rounds)
    return one_run("cxl:4G", rounds)


def peer_of(tier, way):
    if tier == "direct" or way == "copy":
        return "copy"
    return "tcp put" if "put" in way else "tcp get"


def label_of(tier, way):
    if way == "copy":
        return "numpy.copyto, within memory"
    if way.startswith("tcp"):
        return f"plain TCP, {way[4:]}"
    verb, threads, *checked = way.split()
    text = f"{verb}, {'emulated CXL pool' if tier == 'direct' else 'memory server'}"
    if tier == "direct":
        text += f", {threads} thread{'s' if threads != '1' else ''}"
    return text + (", checksums" if checked else "")


def lines_of(tier, result):
    """Ratios are taken inside a round."""
    seconds, mib = result["seconds"], result["settings"]["mib"]
    for way, times in seconds.items():
        speeds = [mib / 1024 / one for one in times]
        ratios = [base / one for base, one in zip(seconds[peer_of(tier, way)], times)]
        yield [
            label_of(tier, way),
            f"{median(speeds):.2f}",
            f"{min(speeds):.2f}-{max(speeds):.2f}",
            f"{median(ratios):.2f}x",
            f"{min(ratios):.2f}-{max(ratios):.2f}",
        ]


def measure(count, only):
    if not (BUILD / "python" / "tidepool").exists():
        raise BenchError("the Python package is not built; run packaging/install-deps.sh bench, then make")
    printed, data = [], {}
    for tier in TIERS:
        if only is not None and tier not in only:
            continue
        result = data[tier] = in_tier(tier, count)
        say(f"tensors: {tier} is done")
        peer = "the copy" if tier == "direct" else "plain TCP"
        note = f"{result['settings']['mib']} MiB, {count} rounds, order rotated; ratio to {peer}, inside a round"
        header = ["", "GiB/s", "spread", "ratio", "spread"]
        printed.append(table(f"tensors, {tier}", header, list(lines_of(tier, result)), [note]))
    return "\n".join(printed), data
