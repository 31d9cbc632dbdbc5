# SPDX-License-Identifier: Apache-2.0
"""Small training programs, made up from a number, in plain PyTorch: python3 row_programs.py FIRST END.

Prints a line for each: every loss to the last digit, and a checksum of all that was learnt. They know
nothing of Tidepool; rows_test.py runs them with and without it.
"""

import copy
import hashlib
import io
import pickle
import random
import sys
import warnings

import torch

LARGEST = 600  # rows
kinds = set()  # of weights, by their classes


def constructed(choose, kind, rows, dim, sparse, options):
    """A layer, and the tensor that its weight was made from, if the program keeps it."""
    given = choose.choice("none none zeros tensor kept sized pretrained".split())
    kept = None
    if given == "zeros":
        layer = kind(rows, dim, sparse=sparse, _weight=torch.zeros(rows, dim), **options)
    elif given == "tensor":
        numbers = torch.randn(rows, dim).numpy()
        layer = kind(rows, dim, sparse=sparse, _weight=torch.tensor(numbers), **options)
    elif given == "kept":
        kept = torch.randn(rows, dim)
        layer = kind(rows, dim, sparse=sparse, _weight=kept, **options)
    elif given == "pretrained":
        options.pop("padding_idx", None)
        numbers = torch.randn(rows, dim)
        layer = kind.from_pretrained(numbers, freeze=False, sparse=sparse, **options)
    elif given == "sized":
        layer = kind(num_embeddings=rows, embedding_dim=dim, sparse=sparse, **options)
    else:
        layer = kind(rows, dim, sparse=sparse, **options)
    return layer, kept


def initialize(choose, weight):
    """What programs do to a weight before they train."""
    kind = choose.choice(
        "none uniform normal xavier data copy fill_row slice trunc numpy mul".split()
    )
    init = torch.nn.init
    shape = weight.shape
    if kind == "uniform":
        init.uniform_(weight, -0.3, 0.3)
    elif kind == "normal":
        init.normal_(weight, 0.1, 0.2)
    elif kind == "xavier":
        init.xavier_uniform_(weight)
    elif kind == "data":
        weight.data = torch.tensor(torch.randn(shape).numpy(), requires_grad=True)
    elif kind == "copy":
        weight.data.copy_(torch.randn(shape))
    elif kind == "fill_row":
        with torch.no_grad():
            weight[shape[0] // 2].fill_(0.5)
            weight[3:5, 1:] = 0.25
    elif kind == "slice":
        weight.data[2:20].normal_()
        weight.data.t()[-1].mul_(3)
    elif kind == "trunc":
        init.trunc_normal_(weight, std=0.2)
    elif kind == "numpy":
        weight.data.copy_(torch.from_numpy(weight.detach().numpy() * 2))
    elif kind == "mul":
        with torch.no_grad():
            weight.mul_(0.5).add_(torch.ones_like(weight), alpha=0.01)


class Layer(torch.nn.Module):
    """An embedding, and how it is looked up."""

    def __init__(self, choose, dim, sparse):
        super().__init__()
        self.rows = choose.randint(40, LARGEST)
        self.bag = choose.random() < 0.6
        options = {}
        if choose.random() < 0.4:
            options["padding_idx"] = choose.randrange(-self.rows, self.rows)
        if choose.random() < 0.15:
            options["max_norm"] = 1.0
        if choose.random() < 0.03:
            options["scale_grad_by_freq"] = True
        self.weighted = self.last = False
        if self.bag:
            options["mode"] = choose.choice(["sum", "mean"])
            self.weighted = options["mode"] == "sum" and choose.random() < 0.3
            self.last = choose.random() < 0.3
            options["include_last_offset"] = self.last
            kind = torch.nn.EmbeddingBag
        else:
            kind = torch.nn.Embedding
        self.inner, self.kept = constructed(choose, kind, self.rows, dim, sparse, options)
        initialize(choose, self.inner.weight)
        self.twice = choose.random() < 0.3
        self.ids = choose.choice([torch.int64, torch.int64, torch.int32])

    def draw(self, choose, bags):
        """What one look-up is of."""
        width = choose.randint(1, 5)
        ids = (torch.rand(bags, width) ** 3 * self.rows).to(self.ids)
        if not self.bag:
            return (ids,)
        weights = torch.rand(bags, width) if self.weighted else None
        if choose.random() < 0.5 and not self.last:
            return (ids, None, weights)
        lengths = torch.randint(0, 4, (bags,))
        ids = (torch.rand(int(lengths.sum())) ** 3 * self.rows).to(self.ids)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(self.ids)
        weights = torch.rand(len(ids)) if self.weighted else None
        return (ids, offsets if self.last else offsets[:-1], weights)

    def forward(self, given):
        found = self.inner(*given)
        return found if self.bag else found.sum(1)


class Model(torch.nn.Module):
    def __init__(self, choose):
        super().__init__()
        dim = choose.choice([1, 3, 8, 16, 17, 64])
        sparse = choose.random() < 0.7
        self.layers = torch.nn.ModuleList(
            Layer(choose, dim, sparse or choose.random() < 0.3) for _ in range(choose.randint(1, 3))
        )
        if len(self.layers) > 1 and choose.random() < 0.25:  # tied
            first, second = self.layers[:2]
            second.rows, second.inner.weight = first.rows, first.inner.weight
        self.top = torch.nn.Linear(dim, 1)

    def draw(self, choose):
        bags = choose.randint(1, 12)
        return [
            [layer.draw(choose, bags) for _ in range(1 + layer.twice)] for layer in self.layers
        ]

    def forward(self, batch):
        low = sum(layer(one) for layer, given in zip(self.layers, batch) for one in given)
        return self.top(torch.tanh(low)).squeeze(1)


def optimizer_of(choose, model, parameters):
    kinds = "sgd momentum nesterov adagrad adagrad sparse_adam"
    if any(not layer.inner.sparse for layer in model.layers):
        kinds = "sgd sgd sgd sgd momentum decay adagrad adam other"
    kind = choose.choice(kinds.split())
    if kind == "other":
        names = "ASGD RMSprop AdamW Adadelta Adamax NAdam RAdam Rprop"
        return getattr(torch.optim, choose.choice(names.split()))(parameters, lr=0.01)
    if kind == "decay":
        return torch.optim.SGD(parameters, lr=0.1, weight_decay=0.01)
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=0.01)
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.1)
    if kind == "momentum":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, maximize=choose.random() < 0.2)
    if kind == "nesterov":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.8, nesterov=True)
    if kind == "adagrad":
        first = choose.choice([0, 0.1])
        return torch.optim.Adagrad(parameters, 0.1, lr_decay=0.01, initial_accumulator_value=first)
    return torch.optim.SparseAdam(parameters, lr=0.01)


def scheduler_of(choose, optimizer):
    kinds = torch.optim.lr_scheduler
    return choose.choice(
        [
            lambda: None,
            lambda: kinds.StepLR(optimizer, 2, 0.5),
            lambda: kinds.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
            lambda: kinds.CosineAnnealingLR(optimizer, 5),
        ]
    )()


def reload(choose, model, optimizer):
    """What programs do between two epochs: the same model, saved, loaded, copied."""
    kinds = "none none state torch_save pickle deepcopy norm eval repr double read read"
    kind = choose.choice(kinds.split())
    if kind == "state":
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    elif kind == "torch_save":
        file = io.BytesIO()
        torch.save(model, file)
        return file.getvalue() and checksum(pickled(model))
    elif kind == "pickle":
        return checksum(pickled(model))
    elif kind == "deepcopy":
        return checksum(copy.deepcopy(model))
    elif kind == "eval":
        with torch.no_grad():
            return repr([float(layer.inner.weight[3:7].sum()) for layer in model.layers])
    elif kind == "repr":
        return repr([layer.inner.weight for layer in model.layers])
    elif kind == "double":
        found = checksum(model.double())
        model.float()
        return found
    elif kind == "read":
        with torch.no_grad():
            return repr([read(choose, layer.inner.weight) for layer in model.layers])
    elif kind == "norm":
        return repr([layer.inner.weight.norm().item() for layer in model.layers])
    return ""


def read(choose, weight):
    """What programs make of parts of a weight, in memory of their own."""
    first = choose.randrange(weight.shape[0] - 8)
    part = choose.choice(
        [
            lambda: weight[first : first + 4],
            lambda: weight.detach()[[first, first + 7, first, 3]],
            lambda: weight.index_select(0, torch.tensor([first, 0, 5, first])),
            lambda: weight.t()[:, first : first + 4].t(),
            lambda: torch.stack(list(weight[first : first + 4].unbind(0))),
            lambda: weight.split(4)[first // 4],
            lambda: weight.narrow(0, first, 4).contiguous(),
        ]
    )()
    own = torch.full(part.shape, 0.5)
    for _ in range(3):
        choose.choice(
            [
                lambda: own.copy_(part),
                lambda: own.add_(part, alpha=0.5),
                lambda: own.mul_(part).add_(0.25),
                lambda: own.lerp_(part, 0.1),
                lambda: own.addcmul_(part, part, value=0.1),
                lambda: torch.maximum(own, part, out=own),
                lambda: own[1:].sub_(part[: len(own) - 1]),
                lambda: own.masked_fill_(part > 0, 0.125),
                lambda: own.copy_(torch.where(part > own, part, own)),
                lambda: own.copy_(torch.cat([part, own])[1 : 1 + len(own)]),
            ]
        )()
    return own.double().sum().item()


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def checksum(model):
    """Of every number in a model or in an optimizer's state."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


def state_checksum(optimizer):
    digest = hashlib.sha256()
    for state in optimizer.state_dict()["state"].values():
        for name, value in sorted(state.items()):
            if isinstance(value, torch.Tensor):
                value = value.coalesce().values() if value.is_sparse else value
                value = value.detach().numpy().tobytes()
            digest.update(f"{name} {value!r}".encode())
    return digest.hexdigest()[:16]


def step(choose, model, optimizer):
    """One step; returns its losses."""
    losses = []
    optimizer.zero_grad(set_to_none=choose.random() < 0.7)
    for _ in range(choose.choice([1, 1, 1, 2, 3])):
        batch = model.draw(choose)
        loss = model(batch).pow(2).mean()
        again = choose.random() < 0.1
        loss.backward(retain_graph=again)
        if again:
            loss.backward()
        losses.append(repr(loss.item()))
    if choose.random() < 0.15:
        losses.append(repr(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))))
    optimizer.step()
    return losses


def run(number):
    """One program; its line."""
    choose = random.Random(number)
    torch.manual_seed(number)
    model = Model(choose)
    embeddings = list(dict.fromkeys(layer.inner.weight for layer in model.layers))
    kinds.update(type(weight).__name__ for weight in embeddings)
    sparse = optimizer_of(choose, model, embeddings)
    dense = torch.optim.SGD(model.top.parameters(), lr=0.1)
    schedule = scheduler_of(choose, sparse)
    said = []
    for epoch in range(choose.randint(2, 3)):
        for _ in range(choose.randint(1, 4)):
            said += step(choose, model, sparse)
            dense.step()
            dense.zero_grad()
            if schedule:
                schedule.step()
        said.append(reload(choose, model, sparse))
        if choose.random() < 0.15:
            embeddings[0].requires_grad_(epoch % 2 == 1)
    kept = [layer.kept.sum().item() for layer in model.layers if layer.kept is not None]
    said += [checksum(model), state_checksum(sparse), repr(kept), repr(torch.rand(1).item())]
    return said


def main(first, end):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for number in range(first, end):
        try:
            said = run(number)
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
            said = [type(error).__name__, str(error).split("\n")[0][:60]]
        print(number, *(one.replace("\n", " ") for one in said), flush=True)
    print(*sorted(kinds), file=sys.stderr)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
