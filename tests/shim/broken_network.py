#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A network that breaks again and again under an unchanged program: broken_network.py TIDEPOOL FABRICMGR.

Between the program and its memory server stands a proxy that resets all connections after random numbers
of bytes, in the midst of frames and handshakes. The program fills memory beyond its budget, checks and
changes it, also in a forked child: all must be as it wrote it, sealed or not. TIDEPOOL_TEST_CUTS: how many resets at least.
"""

import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading

CUTS = int(os.environ.get("TIDEPOOL_TEST_CUTS", "30"))
PROGRAM = """
import hashlib, os, sys
BLOCK, BLOCKS = 65536, 512
fill = lambda i, turn: hashlib.sha256(b"%d %d" % (i, turn)).digest() * (BLOCK // 32)
blocks = [bytearray(fill(i, 0)) for i in range(BLOCKS)]
turn = 0
while True:
    assert all(blocks[i] == fill(i, turn) for i in range(BLOCKS)), turn
    turn += 1
    for i in range(BLOCKS):
        blocks[i][:] = fill(i, turn)
    if turn == 2:
        child = os.fork()
        if child == 0:
            os._exit(0 if all(blocks[i] == fill(i, turn) for i in range(BLOCKS)) else 1)
        assert os.waitpid(child, 0)[1] == 0
    print(turn, flush=True)
    if turn > 2 and not sys.stdin.readline().strip():
        break
"""


class Proxy:
    """Forwards bytes to the server at `port`; resets everything after random numbers of them, `most` times."""

    def __init__(self, port, most):
        self.most = most
        self.to = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.ends = set()
        self.random = random.Random(5)
        self.left = 5_000_000
        self.cuts = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client = self.listener.accept()[0]
            server = socket.create_connection(("127.0.0.1", self.to))
            for end in (client, server):  # the last piece of a page must not wait for acknowledgements of others
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.ends |= {client, server}
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self.forward, args=ends, daemon=True).start()

    def forward(self, end, other):
        try:
            while data := end.recv(65536):
                with self.lock:
                    data = data[: self.left]
                    self.left -= len(data)
                    cut = self.left == 0
                other.sendall(data)
                if cut:
                    self.cut()
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it was reset

    def cut(self):
        with self.lock:
            self.cuts += 1
            self.left = self.random.choice((40, 64, 5000, 100_000, 3_000_000)) + self.random.randrange(100)
            if self.cuts >= self.most:
                self.left = 1 << 60
            for end in self.ends:
                try:
                    # The first wakes who waits for it, the second makes the close a reset.
                    end.shutdown(socket.SHUT_RD)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.close()
                except OSError:
                    pass  # its peer has gone already
            self.ends.clear()


def run(tidepool, server, folder, seal):
    # Sealed batches are sent again from their beginning more often: some thousand resets, and minutes.
    proxy = Proxy(server["port"], 1 << 60 if seal == "off" else 10 * CUTS)
    stats = os.path.join(folder, "stats.json")
    command = [tidepool, "run", "--dram", "20M", "--far", f"remote:127.0.0.1:{proxy.port}:256M",
               "--conf", "compress:off"]
    command += ["--stats", stats, "--conf", "strict:true", "--conf", f"seal:{seal}", "--", sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        for line in program.stdout:
            if int(line) > 2:
                program.stdin.write("on\n" if proxy.cuts < CUTS else "\n")
                program.stdin.flush()
    assert program.returncode == 0, f"the program ended with {program.returncode}"
    with open(stats, encoding="utf-8") as file:
        tier = [tier for tier in json.load(file)["tiers"] if tier["kind"] == "fetch"][0]
    assert tier["reconnections"] > 0, tier
    print(f"seal:{seal}: {proxy.cuts} resets, {tier['reconnections']} connections made again: every byte as it was written")


def main():
    tidepool, fabricmgr = sys.argv[1:]
    serve = [fabricmgr, "memserver", "--listen", "127.0.0.1:0", "--size", "256M", "--json"]
    for seal in ("off", "on"):  # a server each: one keeps what the last cut has left, for a while
        with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
            serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            try:
                run(tidepool, json.loads(server.stdout.readline()), folder, seal)
            finally:
                server.terminate()


main()
