# SPDX-License-Identifier: Apache-2.0
"""Debian's redis-server: filled, saved by BGSAVE (which forks) while writes go on, and the dump loaded again.

One connection writes everything in an order that is known, so each moment has exactly one right contents: write
number `v` puts the same value under `a:PAIR` and `b:PAIR` and `v` under `counter`, in one transaction. BGSAVE is sent
between two writes: the dump must hold every key as it was then, and the server, at its end, as it was at the last.

The package redis-tools has the server as well, under another name, and installs no service that starts by itself.
"""

import array
import pathlib
import random
import shutil
import socket
import subprocess
import tempfile
import time

from .places import BenchError
from .running import die_with_parent

VALUE = 1000  # bytes
BINARY = "redis-check-rdb"  # the server when called redis-server
BATCH = 500  # commands sent before their answers are read
_noise = "".join(f"{random.Random(11).getrandbits(1 << 19):x}").encode()


def value(pair, version):
    """A text that only this write has, compressible to about half."""
    start = (pair * 7919 + version * 104729) % (len(_noise) - VALUE)
    head = b"%d.%d " % (pair, version)
    return head + _noise[start : start + VALUE - len(head)]


def encode(*words):
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        word = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)


class Client:
    """The protocol of redis, over a socket in the file system."""

    def __init__(self, path, patience=60):
        deadline = time.monotonic() + patience
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(str(path))
                break
            except OSError:  # not there yet
                self.socket.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self.socket.settimeout(120)
        self.answers = self.socket.makefile("rb", 1 << 20)
        while isinstance(self.ask("PING", may_fail=True), Exception):  # LOADING
            time.sleep(0.05)

    def close(self):
        self.answers.close()
        self.socket.close()

    def read(self):
        line = self.answers.readline()
        if not line:
            raise ConnectionResetError("redis-server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.answers.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        if kind == b":":
            return int(rest)
        return BenchError(f"redis-server: {rest.decode()}") if kind == b"-" else rest

    def ask(self, *words, may_fail=False):
        self.socket.sendall(encode(*words))
        answer = self.read()
        if isinstance(answer, Exception) and not may_fail:
            raise answer
        return answer

    def send(self, commands):
        """Commands together, given encoded; the answers are looked at for errors alone."""
        self.socket.sendall(b"".join(commands))
        for _ in commands:
            answer = self.read()
            for one in answer if isinstance(answer, list) else [answer]:
                if isinstance(one, Exception):
                    raise one

    def saving(self):
        return b"rdb_bgsave_in_progress:1" in self.ask("INFO", "persistence")


class Book:
    """What each pair must hold: the number of the last write to it."""

    def __init__(self, pairs):
        self.versions = array.array("q", [0]) * pairs
        self.written = 0
        self.choose = random.Random(5)

    def copy(self):
        other = Book(0)
        other.versions, other.written = self.versions[:], self.written
        return other

    def write(self, pair):
        """The next write, as commands."""
        self.written += 1
        self.versions[pair] = self.written
        text = value(pair, self.written)
        return [
            encode("MULTI"),
            encode("SET", f"a:{pair}", text),
            encode("SET", f"b:{pair}", text),
            encode("SET", "counter", self.written),
            encode("EXEC"),
        ]

    def compare(self, client, what):
        """Key by key; BenchError names the first that is not as it must be."""
        keys = 2 * len(self.versions) + 1
        if (size := client.ask("DBSIZE")) != keys:
            raise BenchError(f"{what}: {size} keys for {keys}")
        if (counter := client.ask("GET", "counter")) != b"%d" % self.written:
            raise BenchError(f"{what}: taken at write {counter}, not {self.written}")
        for first in range(0, len(self.versions), BATCH):
            pairs = range(first, min(first + BATCH, len(self.versions)))
            found = client.ask("MGET", *(f"{side}:{pair}" for pair in pairs for side in "ab"))
            for at, text in enumerate(found):
                pair = pairs[at // 2]
                if text != value(pair, self.versions[pair]):
                    is_now = text and text[:40]
                    wanted = f"write {self.versions[pair]}"
                    raise BenchError(f"{what}: {'ab'[at % 2]}:{pair} must be of {wanted}, is {is_now}")


def sent(client, book, pairs):
    commands = []
    for pair in pairs:
        commands += book.write(pair)
        if len(commands) >= BATCH:
            client.send(commands)
            commands = []
    client.send(commands)


class Scene:
    """One run: its folder, what was written, and what the dump must hold."""

    def __init__(self, mib, folder):
        self.pairs = mib * 2**20 // (2 * VALUE)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="redis-", dir=folder))
        self.server = self.folder / "redis-server"
        self.server.symlink_to(shutil.which(BINARY))
        self.book = Book(self.pairs)
        self.at_save = None
        self.while_saving = 0

    def command(self, name="live"):
        words = [self.server, "--port", "0", "--unixsocket", self.folder / name]
        words += ["--dir", self.folder, "--logfile", self.folder / f"{name}.log"]
        return [str(word) for word in words + ["--save", "", "--daemonize", "no"]]

    def play(self, _handle):
        """Writes, saves, writes on, reads all, and ends the server."""
        client = Client(self.folder / "live")
        try:
            sent(client, self.book, range(self.pairs))
            self.at_save = self.book.copy()
            client.ask("BGSAVE")
            for _ in range(self.pairs // 5 // 100):
                sent(client, self.book, (self.book.choose.randrange(self.pairs) for _ in range(100)))
                if client.saving():
                    self.while_saving = self.book.written - self.at_save.written
            while client.saving():
                time.sleep(0.02)
            if b"rdb_last_bgsave_status:ok" not in client.ask("INFO", "persistence"):
                raise BenchError("BGSAVE failed: " + self.log_end())
            if self.while_saving == 0:
                raise BenchError("BGSAVE was over before a write came: nothing was tried")
            self.book.compare(client, "the server at its end")
            client.socket.sendall(encode("SHUTDOWN", "NOSAVE"))
        except OSError as error:
            raise BenchError(f"{error}: {self.log_end()}") from None
        finally:
            client.close()

    def log_end(self):
        log = self.folder / "live.log"
        return "\n".join(log.read_text().splitlines()[-15:]) if log.exists() else "no log"

    def check_dump(self):
        """Loads the dump into a server without Tidepool. Returns figures for the report."""
        with subprocess.Popen(self.command("reloaded"), preexec_fn=die_with_parent) as server:
            try:
                client = Client(self.folder / "reloaded")
                self.at_save.compare(client, "the dump")
                client.close()
            finally:
                server.kill()
        return {"writes": self.book.written, "writes_while_saving": self.while_saving}

    def clear(self):
        shutil.rmtree(self.folder)
