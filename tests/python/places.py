# SPDX-License-Identifier: Apache-2.0
"""A space with every kind of tier for tests, and batches with a skew like that of real ones."""

import ctypes
import os
import re
import signal
import subprocess

import numpy

import tidepool

LOCAL, DIRECT, REMOTE = 0, 1, 2
TIERS = {"local": LOCAL, "direct": DIRECT, "remote": REMOTE}
_libc = ctypes.CDLL(None)


class MemoryServer:
    """A memory server on a free port of the loopback; stop() ends it early."""

    def __init__(self, size="256M"):
        program = os.path.join(os.environ["TIDEPOOL_BUILD"], "bin", "fabricmgr")
        self.process = subprocess.Popen(
            [program, "memserver", "--listen", "127.0.0.1:0", "--size", size],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: _libc.prctl(1, signal.SIGTERM),
        )
        for line in self.process.stdout:
            found = re.search(r"listening on \S*:(\d+)", line)
            if found:
                self.spec = f"remote:127.0.0.1:{found.group(1)}"
                return
        raise RuntimeError("the memory server did not start")

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Everywhere:
    """A space with a far tier of each kind."""

    def __init__(self, threads=2, size="256M", timeout=20.0):
        self.server = MemoryServer(size)
        self.space = tidepool.Space(
            far=[f"cxl:{size}", self.server.spec], threads=threads, timeout=timeout
        )

    def close(self):
        self.space.close()
        self.server.stop()


def batch(random, rows, bags, most):
    """(ids, offsets): a few rows often, most of them seldom; some bags empty."""
    lengths = random.integers(0, most + 1, bags)
    offsets = numpy.concatenate(([0], numpy.cumsum(lengths))).astype(numpy.int64)
    ids = (rows * random.random(offsets[-1]) ** 4).astype(numpy.int64)
    return ids, offsets


def pooled(table, ids, offsets, weights=None, mode="sum"):
    """The model: bags worked out one after the other in float64."""
    result = numpy.zeros((len(offsets) - 1, table.shape[1]))
    for bag in range(len(offsets) - 1):
        rows = slice(offsets[bag], offsets[bag + 1])
        if offsets[bag] == offsets[bag + 1]:
            continue
        each = table[ids[rows]].astype(numpy.float64)
        if weights is not None:
            each = each * weights[rows, None]
        result[bag] = each.sum(0) / (len(each) if mode == "mean" else 1)
    return result
