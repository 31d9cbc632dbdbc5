# SPDX-License-Identifier: Apache-2.0
"""A PyTorch DataLoader whose two workers are forked when a table and a list of records are already there: they read
both, the parent trains on what they send. The same numbers on every run."""

import argparse
import hashlib

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

COLUMNS = 64


class Records(Dataset):
    """Half of the memory is a tensor, half are small Python objects, whose counters of references reading writes."""

    def __init__(self, mib):
        rows = mib * 2**19 // (4 * COLUMNS)
        self.table = torch.arange(rows * COLUMNS, dtype=torch.float32).remainder_(8191).view(rows, COLUMNS)
        self.notes = [(f"record {row} " * 8, row * 2654435761 % 2**61) for row in range(rows)]

    def __len__(self):
        return len(self.notes)

    def __getitem__(self, row):
        text, number = self.notes[row]
        other = number % len(self)
        return self.table[row] + self.table[other], len(text) + number % 1009


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=800)
    parser.add_argument("--batches", type=int, default=2000)
    options = parser.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    records = Records(options.mib)
    sampler = RandomSampler(records, replacement=True, num_samples=options.batches * 256)
    weights = torch.zeros(COLUMNS)
    digest = hashlib.sha256()
    for rows, marks in DataLoader(records, batch_size=256, sampler=sampler, num_workers=2):
        digest.update(rows.numpy().tobytes())
        inputs = rows / 8191
        weights -= 1e-6 * (inputs.T @ (inputs @ weights - marks))
        records.table[int(marks[0])] += 1  # the parent's copy alone: workers keep what was at the fork
    digest.update(records.table.numpy())
    print(digest.hexdigest(), float(weights.sum()))


main()
