# SPDX-License-Identifier: Apache-2.0
"""A click model in the manner of the public DLRM scripts: weights drawn with numpy and assigned through `.weight.data`,
bags by offsets, features combined by pairs, SGD."""

import sys

import numpy
import torch

ROWS = [4000, 1500, 300, 9000]
DIM = 16


class ClickModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = torch.nn.ModuleList()
        for rows in ROWS:
            table = torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True)
            bound = numpy.sqrt(1 / rows)
            drawn = numpy.random.uniform(-bound, bound, size=(rows, DIM)).astype(numpy.float32)
            table.weight.data = torch.tensor(drawn, requires_grad=True)
            self.tables.append(table)
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        self.bottom = torch.nn.Sequential(linear(13, 32), relu(), linear(32, DIM), relu())
        features = len(ROWS) + 1
        self.pairs = torch.tril_indices(features, features, offset=-1)
        inputs = DIM + self.pairs.shape[1]
        self.top = torch.nn.Sequential(linear(inputs, 32), relu(), linear(32, 1), torch.nn.Sigmoid())

    def forward(self, dense, offsets, ids):
        x = self.bottom(dense)
        looked_up = [table(i, o) for table, i, o in zip(self.tables, ids, offsets)]
        stacked = torch.stack([x, *looked_up], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], dim=1)).squeeze(1)


def batch(size=64):
    dense = torch.rand(size, 13)
    offsets, ids = [], []
    for rows in ROWS:
        lengths = torch.randint(1, 6, (size,))
        offsets.append(torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]]))
        ids.append((torch.rand(int(lengths.sum())) ** 3 * rows).long())
    return dense, offsets, ids, torch.rand(size).round()


def main():
    torch.set_num_threads(1)
    numpy.random.seed(5)
    torch.manual_seed(5)
    model = ClickModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.5)
    for _ in range(50):
        dense, offsets, ids, clicked = batch()
        loss = torch.nn.functional.binary_cross_entropy(model(dense, offsets, ids), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        print(loss.item())
    print(*(table.weight.double().sum().item() for table in model.tables))
    print(*(type(table.weight).__name__ for table in model.tables), file=sys.stderr)


main()
