# SPDX-License-Identifier: Apache-2.0
"""What Tidepool costs when everything fits: both trainers under `--dram 100%` against plain, interleaved."""

from . import corpus, fasttext, paired, torch_model

WAYS = ("plain", "fits")


def measure(count, only):
    ways = [way for way in only or WAYS if paired.parts(way)[0] in WAYS]
    text, _ = corpus.make()
    printed, data = [], {}
    _, model = fasttext.footprint(text)
    results, errors = paired.rounds(
        "fits fasttext", ways, count, lambda way: fasttext.one_run(way, text, None)
    )
    table, data["fasttext"] = paired.report(
        "everything fits: fasttext", results, errors, None, fasttext.same_models(results, model)
    )
    printed.append(table)
    _, losses = torch_model.footprint()
    results, errors = paired.rounds(
        "fits torch", ways, count, lambda way: torch_model.one_run(way, None)
    )
    same = torch_model.same_losses(results, losses)
    for runs in results.values():
        for run in runs:
            run.extra.pop("losses")
    table, data["torch"] = paired.report(
        "everything fits: PyTorch recommendation model", results, errors, None, same
    )
    printed.append(table)
    return "\n".join(printed), data
