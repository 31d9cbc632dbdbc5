# SPDX-License-Identifier: Apache-2.0
"""A small recurrent language model over padded sentences, its word vectors sparse, its norms clipped, saved half-way
and loaded again."""

import io
import sys

import torch

WORDS, DIM, PAD = 6000, 32, 0


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, DIM, padding_idx=PAD, sparse=True)
        self.memory = torch.nn.GRU(DIM, 48, batch_first=True)
        self.out = torch.nn.Linear(48, 200)

    def forward(self, sentences):
        return self.out(self.memory(self.words(sentences))[0])


def sentences():
    lengths = torch.randint(3, 20, (24,))
    words = 1 + (torch.rand(24, 20) ** 3 * (WORDS - 1)).long()
    return torch.where(torch.arange(20) < lengths[:, None], words, torch.tensor(PAD))


def optimizers(model):
    dense = [*model.memory.parameters(), *model.out.parameters()]
    return [torch.optim.SparseAdam([model.words.weight], lr=0.01), torch.optim.Adam(dense, lr=0.003)], dense


def main():
    torch.set_num_threads(1)
    torch.manual_seed(13)
    model = Model()
    steps, dense = optimizers(model)
    for step in range(40):
        if step == 20:
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "steps": [one.state_dict() for one in steps]}, file)
            file.seek(0)
            saved = torch.load(file)
            model = Model()
            model.load_state_dict(saved["model"])
            steps, dense = optimizers(model)
            for one, state in zip(steps, saved["steps"]):
                one.load_state_dict(state)
        text = sentences()
        expected = torch.where(text[:, 1:] == PAD, torch.tensor(-100), text[:, 1:] % 200)
        loss = torch.nn.functional.cross_entropy(model(text[:, :-1]).transpose(1, 2), expected)
        for one in steps:
            one.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(dense, 1.0)
        for one in steps:
            one.step()
        print(loss.item())
    print(model.words.weight.double().sum().item(), model.words.weight[PAD].abs().sum().item())
    print(type(model.words.weight).__name__, file=sys.stderr)


main()
