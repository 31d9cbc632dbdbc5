#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A network that breaks again and again under an unchanged program: broken_network.py TIDEPOOL FABRICMGR.

The program fills memory beyond its budget, checks and changes it, also in a forked child: all must be as it wrote
it, sealed or not, over one memory server and over a mirror, of which neither may be lost. Connections are cut in
two ways: by a proxy that resets all of them after random numbers of bytes, in the midst of frames and handshakes;
and by the kernel (ss -K), with pauses in which no packet arrives (loopback is down), in a network namespace of
the test's own.
TIDEPOOL_TEST_CUTS: how many cuts at least, of each.
"""

import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

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


class Kernel:
    """Ends all connections to the ports, at any of their bytes; each tenth time nothing arrives for a while instead."""

    def __init__(self, ports):
        self.cuts = self.pauses = 0
        self.failure = None
        self.ended = threading.Event()
        which = " or ".join(f"dport = :{port}" for port in ports)
        self.destroy = ["ss", "-K", "-Htn", f"( {which} )"]
        self.random = random.Random(6)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            while self.cuts < CUTS and not self.ended.wait(self.random.random() / 20):
                if self.random.randrange(10) == 0:
                    command("ip", "link", "set", "lo", "down")
                    time.sleep(self.random.random() / 2)
                    command("ip", "link", "set", "lo", "up")
                    self.pauses += 1
                elif command(*self.destroy).strip():
                    self.cuts += 1
        except Exception as error:
            self.failure = error

    def end(self):
        self.ended.set()
        self.thread.join()
        if self.failure:
            raise self.failure


def command(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def kernel_cuts():
    """Whether it does (CONFIG_INET_DIAG_DESTROY)."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        command("ss", "-K", "-Htn", f"( dport = :{listener.getsockname()[1]} )")
        try:
            return one.send(b"x") == 0
        except OSError:
            return True


def run(tidepool, far, cutter, seal):
    """The tier's statistics, once there were enough cuts and the program has ended well."""
    with tempfile.TemporaryDirectory() as folder:
        stats = os.path.join(folder, "stats.json")
        words = [tidepool, "run", "--dram", "20M", "--far", f"{far}:256M", "--conf", "compress:off", "--stats", stats]
        words += ["--conf", "strict:true", "--conf", f"seal:{seal}", "--", sys.executable, "-c", PROGRAM]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            for line in program.stdout:
                if int(line) > 2:
                    program.stdin.write("on\n" if cutter.cuts < CUTS else "\n")
                    program.stdin.flush()
        assert program.returncode == 0, f"{far}, seal:{seal}: the program ended with {program.returncode}"
        with open(stats, encoding="utf-8") as file:
            tier = [tier for tier in json.load(file)["tiers"] if tier["kind"] == "fetch"][0]
    assert tier["reconnections"] > 0, tier
    print(f"{far}, seal:{seal}: {cutter.cuts} cuts, {tier['reconnections']} connections made again: "
          "every byte as it was written", flush=True)
    return tier


@contextlib.contextmanager
def memory_servers(fabricmgr, count):
    """Their ports. New ones each time: a server keeps what the last cut has left, for a while."""
    serve = [fabricmgr, "memserver", "--listen", "127.0.0.1:0", "--size", "256M", "--json"]
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            server = stack.enter_context(
                subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
            stack.callback(server.terminate)
            ports.append(json.loads(server.stdout.readline())["port"])
        yield ports


def by_proxy(tidepool, fabricmgr, seal):
    with memory_servers(fabricmgr, 1) as ports:
        # Sealed batches are sent again from their beginning more often: some thousand resets, and minutes.
        proxy = Proxy(ports[0], 1 << 60 if seal == "off" else 10 * CUTS)
        run(tidepool, f"remote:127.0.0.1:{proxy.port}", proxy, seal)


def by_kernel(tidepool, fabricmgr, kind, seal):
    with memory_servers(fabricmgr, {"remote": 1, "mirror": 2}[kind]) as ports:
        kernel = Kernel(ports)
        try:
            far = f"{kind}:" + "+".join(f"127.0.0.1:{port}" for port in ports)
            tier = run(tidepool, far, kernel, seal)
        finally:
            kernel.end()
    for copy in tier.get("copies", []):
        assert copy["state"] == "live" and "unverified_reads" not in copy, tier


def main():
    tidepool, fabricmgr, *inside = sys.argv[1:]
    if not inside:
        rootless = [] if os.geteuid() == 0 else ["--map-root-user"]
        os.execvp("unshare", ["unshare", "--net", *rootless, sys.executable, *sys.argv, "inside"])
    command("ip", "link", "set", "lo", "up")
    for seal in ("off", "on"):
        by_proxy(tidepool, fabricmgr, seal)
    if not kernel_cuts():
        sys.exit("this kernel ends no connections of others (CONFIG_INET_DIAG_DESTROY): half of this test cannot run")
    for kind in ("remote", "mirror"):
        for seal in ("off", "on"):
            by_kernel(tidepool, fabricmgr, kind, seal)


main()
