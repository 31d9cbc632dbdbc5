# SPDX-License-Identifier: Apache-2.0
"""A two-tower model: users are what they looked at, items are themselves, and both towers share one weight."""

import sys

import torch

ITEMS = 8000
DIM = 32


class Towers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.items = torch.nn.Embedding(ITEMS, DIM, sparse=True, padding_idx=0)
        self.history = torch.nn.EmbeddingBag(ITEMS, DIM, mode="mean", sparse=True, padding_idx=0)
        self.history.weight = self.items.weight
        self.user = torch.nn.Linear(DIM, DIM)
        self.item = torch.nn.Linear(DIM, DIM)

    def forward(self, history, item):
        users = torch.nn.functional.normalize(self.user(self.history(history)), dim=1)
        items = torch.nn.functional.normalize(self.item(self.items(item)), dim=1)
        return users @ items.T


def main():
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = Towers()
    assert model.history.weight is model.items.weight
    tables = [model.items.weight]
    dense = [one for one in model.parameters() if one is not tables[0]]
    optimizers = [torch.optim.SparseAdam(tables, lr=0.01), torch.optim.Adam(dense, lr=0.001)]
    for step in range(40):
        history = (torch.rand(96, 12) ** 2 * ITEMS).long()
        scores = model(history, (torch.rand(96) ** 2 * ITEMS).long()) / 0.1
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(96))  # the others of the batch are the negatives
        loss.backward()
        if step % 2 == 1:  # gradients of two batches
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        print(loss.item())
    print(model.items.weight.double().sum().item(), len(model.state_dict()))
    print(type(model.items.weight).__name__, file=sys.stderr)


main()
