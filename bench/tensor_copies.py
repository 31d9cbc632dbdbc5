# SPDX-License-Identifier: Apache-2.0
"""Tensors to and from a far tier, beside a plain copy within memory and plain TCP of the same bytes over the loopback.

    tensor_copies.py --far SPEC [--mib N] [--rounds N]

One array is put and got again and again; its name has room in the tier, as in a loop that offloads. Rounds alternate
between the ways, in an order that rotates. Prints JSON: seconds for each way and round.
"""

import argparse
import json
import os
import socket
import time

import numpy

import tidepool


class Raw:
    """A peer process at the other end of a TCP connection of the loopback: takes the bytes, or sends them."""

    def __init__(self, size):
        listener = socket.create_server(("127.0.0.1", 0))
        self.child = os.fork()
        if self.child == 0:
            connection, _ = listener.accept()
            self.serve(connection, bytearray(size))
            os._exit(0)
        self.socket = socket.create_connection(listener.getsockname())
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.close()

    @staticmethod
    def serve(connection, memory):
        while True:
            word = connection.recv(1)
            if word == b"p":
                receive(connection, memory)
                connection.sendall(b".")
            elif word == b"g":
                connection.sendall(memory)
            else:
                return

    def put(self, values):
        self.socket.sendall(b"p")
        self.socket.sendall(values)
        self.socket.recv(1)

    def get(self, out):
        self.socket.sendall(b"g")
        receive(self.socket, out)

    def close(self):
        self.socket.close()
        os.waitpid(self.child, 0)


def receive(connection, memory):
    left = memoryview(memory).cast("B")
    while left:
        left = left[connection.recv_into(left) :]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--far", metavar="SPEC", required=True)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    values = numpy.random.default_rng(1).integers(0, 256, options.mib << 20, numpy.uint8)
    out = numpy.zeros_like(values)
    remote = options.far.startswith("remote:")
    raw = Raw(values.nbytes) if remote else None  # before there are threads
    space = tidepool.Space(far=[options.far], timeout=60)
    ways = {"copy": lambda: numpy.copyto(out, values)}
    if remote:
        ways["tcp put"] = lambda: raw.put(values)
        ways["tcp get"] = lambda: raw.get(out)
    for threads in (1,) if remote else (1, 2):
        for checked in (False, True):
            store = space.tensors(threads=threads, checksums=checked)
            label = f"{threads} checked" if checked else f"{threads}"
            ways[f"put {label}"] = lambda store=store: store.put("a", values)
            ways[f"get {label}"] = lambda store=store: store.get("a", out)
            for _ in range(2):  # both values of a name have their frames then
                store.put("a", values)
    seconds = {way: [] for way in ways}
    order = list(ways)
    for number in range(options.rounds + 1):
        for way in order:
            start = time.perf_counter()
            ways[way]()
            if number > 0:
                seconds[way].append(time.perf_counter() - start)
            if "get" in way:
                assert out[-1] == values[-1] and out[0] == values[0] and (raw is not None or (out == values).all())
                out[0] = out[-1] = 0
        order = order[1:] + order[:1]
    space.close()
    if raw is not None:
        raw.close()
    print(json.dumps({"settings": vars(options), "seconds": seconds}))


if __name__ == "__main__":
    main()
