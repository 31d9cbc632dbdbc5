# SPDX-License-Identifier: Apache-2.0
"""A small recommendation model: plain PyTorch, or with its table in a far tier. One line differs.

    python3 train.py                          torch.nn.EmbeddingBag and torch.optim.Adagrad
    python3 train.py cxl:256M                 tidepool.torch.EmbeddingBag in an emulated CXL pool, 10 % in DRAM
    python3 train.py remote:127.0.0.1:7777    in a memory server: fabricmgr memserver --size 256M
"""

import sys

import torch

import tidepool
import tidepool.torch

ROWS, DIM, RATE = 200_000, 32, 0.05


def batches(count):
    """Ids with a skew, and something that depends on them."""
    random = torch.Generator().manual_seed(1)
    for _ in range(count):
        ids = (ROWS * torch.rand((256, 20), generator=random) ** 3).long()
        yield ids, (ids < ROWS / 50).float().sum(1, keepdim=True) / 5


def main():
    far = sys.argv[1:]
    if not far:
        bag = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
    else:  # the one line that takes its place
        bag = tidepool.torch.EmbeddingBag(ROWS, DIM, mode="sum", space=tidepool.Space(far), optimizer="adagrad", lr=RATE)
    torch.manual_seed(1)  # the same start for both
    bag.load_state_dict({"weight": torch.randn(ROWS, DIM) * 0.1})
    model = torch.nn.Sequential(bag, torch.nn.Linear(DIM, 1))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=RATE)
    for number, (ids, wanted) in enumerate(batches(200)):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(ids), wanted)
        loss.backward()
        optimizer.step()
        if number % 40 == 39:
            print(f"batch {number + 1}: loss {loss.item():.4f}")
    if far:
        counts = bag.table.counts()
        print(f"{counts.hit_rate:.0%} of the rows from DRAM, {counts.dram_bytes / 2**20:.1f} MiB of it")


if __name__ == "__main__":
    main()
