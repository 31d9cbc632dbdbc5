# SPDX-License-Identifier: Apache-2.0
"""Batches announced ahead: their rows come from a memory server while others are worked on.

    fabricmgr memserver --listen 127.0.0.1:7777 --size 256M &
    python3 lookahead.py remote:127.0.0.1:7777
"""

import collections
import sys

import torch

import tidepool
import tidepool.torch

ROWS, DIM, AHEAD = 100_000, 32, 4


class Clicks(torch.utils.data.Dataset):
    """Made by worker processes: they do not touch the tables."""

    def __len__(self):
        return 64 * 128

    def __getitem__(self, number):
        random = torch.Generator().manual_seed(number)
        return (ROWS * torch.rand(10, generator=random) ** 2).long(), torch.tensor([number % 2 * 1.0])


def announced(loader, module):
    """The loader's batches, each of them announced AHEAD batches before it is used."""
    waiting = collections.deque()
    for batch in loader:
        module.prefetch(batch[0])
        waiting.append(batch)
        if len(waiting) > AHEAD:
            yield waiting.popleft()
    yield from waiting


def main():
    # A tenth of the table, which is what there is otherwise, just holds AHEAD batches beside hot rows.
    with tidepool.Space(far=sys.argv[1:], dram="15%") as space:
        bag = tidepool.torch.EmbeddingBag(ROWS, DIM, space=space, optimizer="adagrad", lr=0.1)
        model = torch.nn.Sequential(bag, torch.nn.Linear(DIM, 1))
        loader = torch.utils.data.DataLoader(Clicks(), batch_size=128, num_workers=2)
        for ids, wanted in announced(loader, bag):
            torch.nn.functional.binary_cross_entropy_with_logits(model(ids), wanted).backward()
        counts = bag.table.counts()
        print(f"{counts.steps} steps; {counts.prefetched} rows came ahead, {counts.fetched} had to be waited for")


if __name__ == "__main__":
    main()
