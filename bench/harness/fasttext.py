# SPDX-License-Identifier: Apache-2.0
"""fasttext, unchanged, on 6 MB of real text: time, bytes of the model, peak local memory."""

import hashlib
import os
import shutil

from . import corpus, paired
from .places import WORK, BenchError, say
from .tables import mib

SHARE = 0.25  # of the plain run's peak RSS: the budget


def command(text, model):
    return [
        "fasttext",
        "skipgram",
        "-input",
        str(text),
        "-output",
        str(model),
        "-dim",
        "100",
        "-bucket",
        "2000000",
        "-epoch",
        "1",
        "-thread",
        "1",
        "-verbose",
        "0",
    ]


def digest_and_remove(model):
    """SHA-256 over the .bin and .vec that a run wrote; 0.8 GB, so they do not stay."""
    digests = {}
    for suffix in (".bin", ".vec"):
        path = str(model) + suffix
        hasher = hashlib.sha256()
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                hasher.update(chunk)
        digests[suffix] = hasher.hexdigest()
        os.unlink(path)
    return digests


def one_run(way, text, budget):
    model = WORK / f"model-{os.getpid()}"
    try:
        result = paired.run_way(
            way, command(text, model), budget, stats_path=WORK / f"fasttext-{way}.stats.json"
        )
        result.extra["model"] = digest_and_remove(model)
        return result
    finally:
        for suffix in (".bin", ".vec"):
            if os.path.exists(str(model) + suffix):
                os.unlink(str(model) + suffix)


def footprint(text):
    """The plain run's peak RSS, and its model: also warms caches up, so its time does not count."""
    if shutil.which("fasttext") is None:
        raise BenchError("fasttext is not installed; run packaging/install-deps.sh demo")
    say("fasttext: a plain run first, to learn the footprint")
    result = one_run("plain", text, None)
    return result.watch["peak_rss_bytes"], result.extra["model"]


def same_models(results, reference):
    return {
        way: all(run.extra["model"] == reference for run in runs)
        for way, runs in results.items()
        if runs
    }


def measure(count, only):
    text, digest = corpus.make()
    ways = paired.choose(only)
    size, reference = footprint(text)
    budget = int(size * SHARE)
    say(f"fasttext: footprint {mib(size)}, budget {mib(budget)}")
    results, errors = paired.rounds("fasttext", ways, count, lambda way: one_run(way, text, budget))
    printed, data = paired.report(
        "fasttext skipgram -dim 100 -bucket 2000000 -epoch 1 -thread 1, a quarter of its memory",
        results,
        errors,
        budget,
        same_models(results, reference),
        [f"text {os.path.getsize(text)} bytes, sha256 {digest[:16]}...; footprint {mib(size)}"],
    )
    data.update({"corpus_sha256": digest, "footprint_bytes": size, "model_sha256": reference})
    return printed, data
