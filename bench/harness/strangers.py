#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A flood of strangers: peers of a TLS port that never finish a handshake. Some say nothing, some half a hello, some
garbage, some half a request in plain text. As many as were asked for are kept open: one that is hung up on comes again.

    strangers.py HOST:PORT COUNT ADDRESSES

They come from so many addresses, 127.1.0.1 onward. Prints "flooding" once as many have connected; ends when its input
does, and prints counts as JSON.
"""

import errno
import json
import resource
import select
import socket
import sys

BIND_ADDRESS_NO_PORT = 24  # the port is chosen when it connects
SAYINGS = (
    b"",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20),
    bytes(range(0x80, 0x100)),
    b"POST /v1/hosts HTTP/1.1\r\nHost: x\r\nContent-Le",
)


class Strangers:
    def __init__(self, target, count, addresses):
        self.target = target
        self.count = count
        self.addresses = [f"127.1.{i // 250}.{i % 250 + 1}" for i in range(addresses)]
        self.poll = select.epoll()
        self.open = {}  # sockets by their descriptors
        self.tried = self.connected = self.ended = 0

    def come(self):
        """One more; False if there is no port left just now."""
        one = socket.socket()
        one.setblocking(False)
        one.setsockopt(socket.IPPROTO_IP, BIND_ADDRESS_NO_PORT, 1)
        try:
            one.bind((self.addresses[self.tried % len(self.addresses)], 0))
            failed = one.connect_ex(self.target) not in (0, errno.EINPROGRESS)
        except OSError:
            failed = True
        if failed:
            one.close()
            return False
        self.open[one.fileno()] = one
        self.poll.register(one, select.EPOLLOUT)
        self.tried += 1
        return True

    def leave(self, one):
        del self.open[one.fileno()]
        one.close()
        self.ended += 1

    def hear(self, number, events):
        one = self.open[number]
        if events & (select.EPOLLERR | select.EPOLLHUP):
            return self.leave(one)
        try:
            if events & select.EPOLLIN:
                if not one.recv(4096):
                    self.leave(one)
                return
            self.connected += 1
            one.send(SAYINGS[self.connected % len(SAYINGS)])
            self.poll.modify(one, select.EPOLLIN)
        except OSError:
            self.leave(one)

    def flood(self, ended):
        said = False
        self.poll.register(ended, select.EPOLLIN)
        while True:
            while len(self.open) < self.count and self.come():
                pass
            for number, events in self.poll.poll(0.05):
                if number == ended:
                    return
                self.hear(number, events)
            if not said and self.connected >= self.count:
                said = True
                print("flooding", flush=True)


def main():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, port = sys.argv[1].split(":")
    strangers = Strangers((host, int(port)), int(sys.argv[2]), int(sys.argv[3]))
    strangers.flood(sys.stdin.fileno())
    print(json.dumps({"connected": strangers.connected, "ended": strangers.ended, "open": len(strangers.open)}))


if __name__ == "__main__":
    main()
