#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mirror.py BIN: sort(1) with most of its memory on two memory servers, of which one is killed or stopped at a
random point, over and over: the same bytes, exit status 0, and one line that says which server is lost. With
both killed it ends by SIGBUS and says so. BIN holds `tidepool` and `fabricmgr`.
TIDEPOOL_MIRROR_POINTS: how many points (6); TIDEPOOL_MIRROR_SEED: another sequence of them."""

import ctypes
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

POINTS = int(os.environ.get("TIDEPOOL_MIRROR_POINTS", "6"))
SEED = int(os.environ.get("TIDEPOOL_MIRROR_SEED", "20261127"))
LINES = 400_000
PR_SET_PDEATHSIG = 1
PRCTL = ctypes.CDLL(None).prctl


def end_with_parent():
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """A memory server of its own on loopback; `with` ends it."""

    def __init__(self, tools, folder, address="127.0.0.1:0"):
        self.said = tempfile.TemporaryFile(dir=folder)
        command = [tools / "fabricmgr", "memserver", "--listen", address, "--size", "160M"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.said,
                                        stderr=self.said, preexec_fn=end_with_parent)
        self.address = None

    def __enter__(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(rb"127\.0\.0\.1:[1-9]\d*", os.pread(self.said.fileno(), 4096, 0))
            if found:
                self.address = found.group().decode()
                return self
            time.sleep(0.01)
        raise SystemExit("a memory server did not start")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.said.close()


def make_input():
    numbers = random.Random(1)
    return [b"%016x\n" % numbers.getrandbits(64) for _ in range(LINES)]


class Sorting:
    """sort(1) between two pipes. Points of its run are told by bytes, in and out, which need no clock."""

    def __init__(self, tools, folder, servers, seal="off"):
        self.stats, self.said = folder / "stats", open(folder / "said", "w+b")
        self.stats.unlink(missing_ok=True)
        spec = "+".join(server.address for server in servers)
        command = [tools / "tidepool", "run", "--dram", "12M", "--far", f"mirror:{spec}:128M", "--conf",
                   f"remote_timeout:500ms,budget_scope:managed,start:now,compress:off,seal:{seal}", "--stats", self.stats, "--",
                   "sort", "-S", "40M", "--parallel=2"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.said, env=dict(os.environ, LC_ALL="C"),
                                        preexec_fn=end_with_parent)
        self.out = b""

    def go(self, data, begin, end):
        """From one point to another."""
        try:
            if begin < len(data):
                self.process.stdin.write(data[begin:end])
                self.process.stdin.flush()
            if end >= len(data) and not self.process.stdin.closed:
                self.process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended: its status says how
        if end > len(data):
            self.out += self.process.stdout.read(end - max(begin, len(data)))

    def finish(self):
        """The exit status, standard error, and the statistics (None: it wrote none)."""
        status = self.process.wait(240)
        self.process.stdout.close()
        self.said.seek(0)
        said = self.said.read().decode()
        self.said.close()
        told = self.stats.read_text() if self.stats.exists() else ""
        return status, said, json.loads(told) if told else None


def run(tools, folder, data, lose, point):
    """Loses those servers, by a signal each, at the point. Returns the output and what finish() does."""
    with Server(tools, folder) as first, Server(tools, folder) as second:
        sorting = Sorting(tools, folder, (first, second))
        sorting.go(data, 0, point)
        for number, how in lose.items():
            (first, second)[number].process.send_signal(how)
        sorting.go(data, point, 2 * len(data))
        return sorting.out, *sorting.finish()


def main(tools):
    with tempfile.TemporaryDirectory(prefix="mirror-") as name:
        folder, tools = pathlib.Path(name), pathlib.Path(tools)
        lines = make_input()
        data, wanted = b"".join(lines), b"".join(sorted(lines))
        choose = random.Random(SEED)
        got, status, said, told = run(tools, folder, data, {}, len(data))
        if (status, got, said) != (0, wanted, "") or not told["demoted_bytes"]:
            return f"with both servers: status {status}, {said}, {told}"
        noticed = 0
        for number in range(POINTS):
            server, how = choose.randrange(2), (signal.SIGKILL, signal.SIGSTOP)[number % 2]
            # What a pipe holds may have been written before the program has begun.
            point = choose.randrange(1 << 20, 2 * len(data))
            got, status, said, told = run(tools, folder, data, {server: how}, point)
            where = f"{how.name} of server {server} at byte {point} of {2 * len(data)}"
            if status != 0 or got != wanted:
                return f"{where}: status {status}, {'right' if got == wanted else 'wrong'} bytes: {said}"
            copies = told["tiers"][1]["copies"]
            lost = [at for at, copy in enumerate(copies) if copy["state"] == "lost"]
            # Standard error may have been closed by then.
            told_of = sum("has all pages" in error for error in told["errors"])
            if lost not in ([], [server]) or not said.count("has all pages") <= told_of == len(lost):
                return f"{where}: {copies}, {told['errors']}, {said}"
            noticed += len(lost)
            print(f"{where}: right. {said.strip() or 'It was not needed any more'}")
        if POINTS > 4 and noticed == 0:
            return "no loss was ever noticed: this has tested nothing"
        got, status, said, told = run(tools, folder, data, {0: signal.SIGKILL, 1: signal.SIGKILL}, len(data))
        if status != -signal.SIGBUS or "far memory mirror:127.0.0.1:" not in said:
            return f"without both: status {status}, {said}"
        print(f"both killed: SIGBUS. {said.strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
