# SPDX-License-Identifier: Apache-2.0
"""A client of QEMU's machine protocol (QMP): one JSON object a line over a Unix socket. Not thread-safe."""

import json
import socket
import time

from .places import VmError


class Qmp:
    def __init__(self, path, seconds=30):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(seconds)
        give_up = time.monotonic() + seconds
        while True:
            try:
                self.socket.connect(str(path))
                break
            except OSError as error:
                if time.monotonic() > give_up:
                    raise VmError(f"QEMU does not answer on {path}: {error}") from error
                time.sleep(0.05)
        self.lines = self.socket.makefile("r", encoding="utf-8")
        self.events = []
        self.receive()  # the greeting
        self.call("qmp_capabilities")

    def receive(self):
        line = self.lines.readline()
        if not line:
            raise VmError("QEMU ended the connection")
        return json.loads(line)

    def call(self, command, **arguments):
        """The command's answer. Events that come before it are kept in `events`."""
        words = {"execute": command, "arguments": {k.replace("_", "-"): v for k, v in arguments.items()}}
        self.socket.sendall(json.dumps(words).encode() + b"\n")
        while True:
            answer = self.receive()
            if "event" in answer:
                self.events.append(answer)
            elif "error" in answer:
                raise VmError(f"QEMU refuses {command}: {answer['error'].get('desc')}")
            else:
                return answer.get("return")

    def wait_for(self, event, **data):
        """The next event of that name (from now or already seen) whose data has these values."""

        def fits(one):
            found = one.get("data", {})
            return one["event"] == event and all(found.get(k) == v for k, v in data.items())

        while True:
            for one in self.events:
                if fits(one):
                    self.events.remove(one)
                    return one
            answer = self.receive()
            if "event" in answer:
                self.events.append(answer)

    def close(self):
        self.lines.close()
        self.socket.close()
