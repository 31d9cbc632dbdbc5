# SPDX-License-Identifier: Apache-2.0
"""Training that may be killed at any moment: it saves itself as it goes, and goes on from the newest checkpoint.

    python3 resume.py CHECKPOINTS [FAR...]    such as: resume.py checkpoints cxl:256M
"""

import hashlib
import sys

import torch

import tidepool
import tidepool.torch

ROWS, DIM, RATE, BATCHES, EVERY = 100_000, 16, 0.05, 2000, 50


def batch(number):
    """A function of its number alone, so that a resumed run sees the batches that it would have seen."""
    random = torch.Generator().manual_seed(number)
    ids = (ROWS * torch.rand((128, 20), generator=random) ** 3).long()
    return ids, (ids < ROWS / 50).float().sum(1, keepdim=True) / 5


def digest(model, optimizer):
    """Of every byte that training changed."""
    sums = [state["sum"] for state in optimizer.state_dict()["state"].values()]
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in (*model.state_dict().values(), *sums))).hexdigest()


def main():
    directory, far = sys.argv[1], sys.argv[2:]
    torch.manual_seed(1)
    bag = tidepool.torch.EmbeddingBag(
        ROWS, DIM, mode="sum", space=tidepool.Space(far), optimizer="adagrad", lr=RATE, name="ids"
    )
    model = torch.nn.Sequential(bag, torch.nn.Linear(DIM, 1))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=RATE)
    first, saving = 0, None
    try:
        saved = tidepool.torch.restore(directory, model)
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["batch"]
    except tidepool.NotFound:
        pass  # nothing was saved yet
    print(f"from batch {first}", flush=True)
    for number in range(first, BATCHES):
        if number > first and number % EVERY == 0:
            if saving is not None:
                saving.result()  # one at a time
            kind = "full" if number % (5 * EVERY) == 0 else "auto"
            extra = {"optimizer": optimizer.state_dict(), "batch": number}
            saving = tidepool.torch.save(directory, model, extra, kind, keep=3)
        ids, wanted = batch(number)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(ids), wanted).backward()
        optimizer.step()
    if saving is not None:
        saving.result()
    print(f"after batch {BATCHES}: {digest(model, optimizer)}")


if __name__ == "__main__":
    main()
