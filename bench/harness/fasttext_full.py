# SPDX-License-Identifier: Apache-2.0
"""fasttext with ten threads, which fill all of its input matrix with random numbers: nothing in it compresses.

They train side by side without locks, so no two models are alike, and none are compared.
"""

from . import corpus, fasttext, paired
from .places import say
from .tables import mib

THREADS = 10


def measure(count, only):
    text, digest = corpus.make()
    ways = paired.choose(only, paired.ALL_WAYS)
    size, _ = fasttext.footprint(text, THREADS)
    budget = int(size * fasttext.SHARE)
    say(f"fasttext-full: footprint {mib(size)}, budget {mib(budget)}")

    def one(way):
        return fasttext.one_run(way, text, budget, threads=THREADS)

    results, errors = paired.rounds("fasttext-full", ways, count, one)
    printed, data = paired.report(
        f"fasttext skipgram as above, -thread {THREADS}, a quarter of its memory",
        results,
        errors,
        budget,
        {},
        [f"an input matrix without zeros; models of several threads differ and are not compared; footprint {mib(size)}"],
    )
    data.update({"corpus_sha256": digest, "footprint_bytes": size})
    return printed, data
