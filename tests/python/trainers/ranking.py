# SPDX-License-Identifier: Apache-2.0
"""Bayesian personalized ranking (Rendle et al. 2009): two look-ups of one table in one loss."""

import sys

import torch

USERS, ITEMS, DIM = 3000, 7000, 24


def main():
    torch.set_num_threads(1)
    torch.manual_seed(11)
    users = torch.nn.Embedding(USERS, DIM, sparse=True)
    items = torch.nn.Embedding(ITEMS, DIM, sparse=True)
    bias = torch.nn.Embedding(ITEMS, 1, sparse=True)
    torch.nn.init.normal_(users.weight, std=0.1)
    torch.nn.init.normal_(items.weight, std=0.1)
    torch.nn.init.zeros_(bias.weight)
    parameters = [users.weight, items.weight, bias.weight]
    optimizer = torch.optim.Adagrad(parameters, lr=0.05)
    for _ in range(50):
        user = torch.randint(0, USERS, (256,))
        liked = (torch.rand(256) ** 4 * ITEMS).long()
        other = torch.randint(0, ITEMS, (256,))
        u, i, j = users(user), items(liked), items(other)
        margin = (u * (i - j)).sum(1) + (bias(liked) - bias(other)).squeeze(1)
        penalty = (u.square().sum() + i.square().sum() + j.square().sum()) * 1e-4 / len(user)
        loss = -torch.nn.functional.logsigmoid(margin).mean() + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
    print(*(one.double().sum().item() for one in parameters))
    # As an evaluation does it: without gradients, and all items for some users.
    with torch.no_grad():
        scores = users(torch.arange(8)) @ items.weight.T + bias.weight.T
        print(*scores.topk(5).indices.flatten().tolist())
    print(*(type(one).__name__ for one in parameters), file=sys.stderr)


main()
