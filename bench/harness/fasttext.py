# SPDX-License-Identifier: Apache-2.0
"""fasttext, unchanged, on 6 MB of real text: time, bytes of the model, peak local memory."""

import hashlib
import os
import shutil

from . import corpus, inside, paired
from .places import WORK, BenchError, say
from .tables import mib

SHARE = 0.25  # of the plain run's peak RSS: the budget
MID_RUN = 6  # seconds after the start: it trains for longer than that
# fasttext fills its matrix of input vectors with one thread for each tenth of it, and -thread 1 is one thread.
ZEROS = (
    "with -thread 1 fasttext leaves nine tenths of its input matrix zero: 56 to 62 % of its pages, which "
    "compress to nothing (`bench/run fasttext-full`: without zeros)"
)


def command(text, model, threads=1):
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
        str(threads),
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


def one_run(way, text, budget, look=None, threads=1):
    """`look`: seconds after which Tidepool's own memory is looked at, which may cost the run a third of one."""
    model = WORK / f"model-{os.getpid()}"
    looks = []

    def started(handle):
        if look is not None:
            looks.append(inside.LateLook(handle.child_pid(), look))
            looks[0].start()

    try:
        result = paired.run_way(
            way,
            command(text, model, threads),
            budget,
            started=started,
            stats_path=paired.stats_path("fasttext", way),
        )
        result.extra["inside"] = looks[0].seen if looks else {}
        result.extra["model"] = digest_and_remove(model)
        return result
    finally:
        for look in looks:
            look.cancel()
        for suffix in (".bin", ".vec"):
            if os.path.exists(str(model) + suffix):
                os.unlink(str(model) + suffix)


def footprint(text, threads=1):
    """The plain run's peak RSS, and its model: also warms caches up, so its time does not count."""
    if shutil.which("fasttext") is None:
        raise BenchError("fasttext is not installed; run packaging/install-deps.sh demo")
    say("fasttext: a plain run first, to learn the footprint")
    result = one_run("plain", text, None, threads=threads)
    return result.watch["peak_rss_bytes"], result.extra["model"]


def same_models(results, reference):
    return {
        way: all(run.extra["model"] == reference for run in runs)
        for way, runs in results.items()
        if runs
    }


def measure(count, only):
    text, digest = corpus.make()
    ways = paired.choose(only, paired.ALL_WAYS, paired.DISK_WAYS)
    size, reference = footprint(text)
    budget = int(size * SHARE)
    say(f"fasttext: footprint {mib(size)}, budget {mib(budget)}")
    looked = {"plain", "zram"}

    def one(way):
        look = None if way in looked else MID_RUN
        looked.add(way)
        return one_run(way, text, budget, look)

    results, errors = paired.rounds("fasttext", ways, count, one)
    notes = [ZEROS, f"text {os.path.getsize(text)} bytes, sha256 {digest[:16]}...; footprint {mib(size)}"]
    for way, runs in results.items():
        notes += inside.memory_note(way, runs)
    printed, data = paired.report(
        "fasttext skipgram -dim 100 -bucket 2000000 -epoch 1 -thread 1, a quarter of its memory",
        results,
        errors,
        budget,
        same_models(results, reference),
        notes,
    )
    data.update({"corpus_sha256": digest, "footprint_bytes": size, "model_sha256": reference})
    return printed, data
