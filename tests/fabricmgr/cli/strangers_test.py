#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Thousands of peers that show no certificate, and local users without a role: root, agents that are connected and agents
that come are answered, descriptors last, and the log stays short.

    FABRICMGR=build/release/bin/fabricmgr strangers_test.py [unittest arguments]
"""

import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import ssl
import subprocess
import sys
import time
import unittest

from fabric import FabricTest

FLOOD = pathlib.Path(__file__).resolve().parents[3] / "bench" / "harness" / "strangers.py"
STRANGERS = 3000
ROUNDS = 20
LINES, LINES_A_SECOND = 50, 5  # of the log, about who was refused

# Connects until it is turned away, and says how many connections it has.
LOCAL = """
import socket, sys
held = []
while True:
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    try:
        one.sendall(b"GET /v1/whoami HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        if not one.recv(100):
            break
    except ConnectionError:
        break
    held.append(one)
print(len(held), flush=True)
sys.stdin.read()
"""


class StrangersTest(FabricTest):
    more = """
[limits]
handshakes = 64
handshakes_per_address = 24
local_connections = 40
connections_per_principal = 40
"""
    descriptors = 240

    def setUp(self):
        self.began = time.monotonic()
        super().setUp()
        self.furnish()

    @contextlib.contextmanager
    def flood(self, addresses):
        """Of so many addresses. When it is over, what it counted is in `self.flooded`."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        strangers = min(STRANGERS, most - 50)
        with subprocess.Popen(
            [sys.executable, FLOOD, self.daemon.addresses[1].split("//")[1], str(strangers), str(addresses)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                self.assertEqual(process.stdout.readline(), "flooding\n")
                yield
                self.flooded = json.loads(process.communicate(timeout=60)[0])
            finally:
                process.kill()

    def connect(self, name):
        context = ssl.create_default_context(cafile=f"{self.ca}/ca.crt")
        context.load_cert_chain(f"{self.ca}/{name}.crt", f"{self.ca}/{name}.key")
        host, port = self.daemon.addresses[1].split("//")[1].split(":")
        return http.client.HTTPSConnection(host, int(port), context=context, timeout=60)

    def beat(self, connection):
        connection.request("POST", "/v1/hosts/node1/heartbeat", "{}", {"Content-Type": "application/json"})
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200, answer.read())
        answer.read()

    def everybody_is_answered(self, there):
        for _ in range(ROUNDS):
            self.run_program("status")
            self.beat(there)
            comes = self.connect("node1")
            self.beat(comes)
            comes.close()
        with self.agent("node2") as status:
            self.until(lambda: status()["manager"] == "member", self.folder / "node2.log")

    def log_is_short(self):
        """What was refused is counted, all of it, and not all of it is said."""
        text = (self.folder / "log").read_text()
        lines = [line for line in text.splitlines() if "refused peer=" in line]
        self.assertLessEqual(len(lines), LINES + LINES_A_SECOND * (time.monotonic() - self.began))
        unsaid = sum(int(count) for count in re.findall(r"\(and (\d+) more not said\)", text))
        self.assertGreater(unsaid, STRANGERS / 2)
        self.assertNotIn("cannot accept connections", text)

    def refused(self):
        return int(re.search(r'turned_away_total\{reason="handshake"\} (\d+)', self.metrics()).group(1))

    def withstands(self, addresses):
        self.issue("host", "node1")
        there = self.connect("node1")
        self.beat(there)
        with self.flood(addresses):
            # All of the first have been looked at by then.
            self.until(lambda: self.refused() > STRANGERS, self.folder / "log")
            self.everybody_is_answered(there)
            open_now = len(os.listdir(f"/proc/{self.daemon.process.pid}/fd"))
            self.assertLess(open_now, self.descriptors)
        self.beat(there)
        there.close()
        self.assertGreater(self.flooded["ended"], STRANGERS)
        self.log_is_short()

    def test_of_one_address(self):
        self.withstands(1)

    def test_of_many_addresses(self):
        self.withstands(30)

    @unittest.skipIf(os.geteuid() != 0, "only root can be another user")
    def test_local_users_without_a_role(self):
        self.folder.chmod(0o711)
        with subprocess.Popen(
            [sys.executable, "-c", LOCAL, f"{self.folder}/sock"],
            user=65534,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                self.assertEqual(process.stdout.readline(), "30\n")
                for _ in range(ROUNDS):
                    self.run_program("status")
            finally:
                process.kill()


if __name__ == "__main__":
    unittest.main()
