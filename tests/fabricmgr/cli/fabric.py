# SPDX-License-Identifier: Apache-2.0
"""For tests of the fabricmgr program from outside: a certificate authority and a daemon of each test's own, over the
Unix socket and over mutual TLS. The program is the one that FABRICMGR names."""

import contextlib
import http.client
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import tempfile
import unittest

PROGRAM = os.path.abspath(os.environ["FABRICMGR"])
DONE, FAILED, USAGE, NOT_FOUND, REFUSED, UNREACHABLE, CONFLICT, TIMED_OUT = range(8)


class Daemon:
    """`fabricmgr serve` in a folder of its own; with so many descriptors, if that is not None."""

    def __init__(self, folder, descriptors=None):
        self.folder = folder
        self.limited = [] if descriptors is None else ["prlimit", f"--nofile={descriptors}"]
        self.process = None
        self.addresses = []

    def start(self):
        if not (self.folder / "fabric.db").exists():
            subprocess.run(
                [PROGRAM, "init", "--config", str(self.folder / "fabric.toml")], stdout=subprocess.DEVNULL, check=True
            )
        with open(self.folder / "log", "a") as log:
            self.process = subprocess.Popen(
                [*self.limited, PROGRAM, "serve", "--config", str(self.folder / "fabric.toml")],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        wanted = 2
        self.addresses = [self.process.stdout.readline().split()[-1] for _ in range(wanted)]

    def end(self, number=signal.SIGTERM):
        if self.process is None:
            return None
        self.process.send_signal(number)
        status = self.process.wait(20)
        self.process.stdout.close()
        self.process = None
        return status


class FabricTest(unittest.TestCase):
    more = ""  # of the daemon's configuration
    descriptors = None  # of the daemon

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.ca = str(self.folder / "ca")
        self.run_program("ca", "init", "--dir", self.ca)
        self.issue("server", "manager", "--host", "127.0.0.1")
        config = self.folder / "fabric.toml"
        self.issue("manager", "main")
        config.write_text(f"""
state = "{self.folder}/fabric.db"
[unix]
path = "{self.folder}/sock"
[tcp]
listen = "127.0.0.1:0"
certificate = "{self.ca}/manager.crt"
key = "{self.ca}/manager.key"
ca = "{self.ca}/ca.crt"
crl = "{self.ca}/crl.pem"
[memservers]
certificate = "{self.ca}/main.crt"
key = "{self.ca}/main.key"
ca = "{self.ca}/ca.crt"
crl = "{self.ca}/crl.pem"
{self.more}""")
        self.daemon = Daemon(self.folder, self.descriptors)
        self.daemon.start()

    def tearDown(self):
        self.daemon.end()
        self.temporary.cleanup()

    def environment(self, **more):
        environment = {"PATH": os.environ["PATH"], "TIDEPOOL_FABRIC": f"unix:{self.folder}/sock"}
        environment.update(more)
        return environment

    def run_program(self, *words, code=DONE, **more):
        codes = code if isinstance(code, tuple) else (code,)
        done = subprocess.run(
            [PROGRAM, *words], env=self.environment(**more), capture_output=True, text=True, timeout=60
        )
        self.assertIn(done.returncode, codes, f"{words}\n{done.stdout}{done.stderr}")
        return done

    def issue(self, kind, name, *more):
        self.run_program("ca", "issue", kind, name, "--dir", self.ca, *more)

    def ask(self, *words, **more):
        return json.loads(self.run_program(*words, "--json", **more).stdout)

    def furnish(self):
        with open(self.folder / "pool", "wb") as pool:
            pool.truncate(64 << 20)
        self.run_program("pool", "add", "cxl", "--class", "cxl")
        self.run_program("device", "add", "dev0", "--pool", "cxl", "--address", str(self.folder / "pool"))
        self.run_program("host", "add", "node1", "--lease", "10m")
        self.run_program("host", "add", "node2")

    @contextlib.contextmanager
    def memory_server(self, *days):
        """Its process and what it said; mem0 is its device, and its log is in the folder."""
        self.issue("memserver", "mem0", *days)
        with open(self.folder / "mem0.log", "w") as log:
            server = subprocess.Popen(
                [PROGRAM, "memserver", "--listen", "127.0.0.1:0", "--size", "64M", "--json"]
                + ["--control", "127.0.0.1:0", "--cert", f"{self.ca}/mem0.crt", "--key", f"{self.ca}/mem0.key"]
                + ["--ca", f"{self.ca}/ca.crt", "--crl", f"{self.ca}/crl.pem"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            said = json.loads(server.stdout.readline())
            self.run_program("pool", "add", "far", "--class", "remote")
            control = f"127.0.0.1:{said['control_port']}"
            self.run_program("device", "add", "mem0", "--pool", "far", "--address", control)
            yield server, said
        finally:
            server.kill()
            server.wait()
            server.stdout.close()

    @contextlib.contextmanager
    def agent(self, host):
        """Of that host, over TLS: how it is, when asked; its log is in the folder."""
        self.issue("host", host)
        place = ["--socket", f"{self.folder}/{host}.sock"]
        with open(self.folder / f"{host}.log", "w") as log:
            agent = subprocess.Popen(
                [PROGRAM, "agent", "--host", host, "--journal", f"{self.folder}/{host}.journal", *place],
                env=self.environment(**self.over_tls(host)),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            agent.stdout.readline()
            yield lambda: json.loads(
                self.run_program("agent", "--status", *place, "--json", code=(DONE, FAILED)).stdout
            )
        finally:
            agent.kill()
            agent.wait()
            agent.stdout.close()

    def reload(self, says):
        """By SIGHUP; returns when the manager's log has that line once more."""
        log = self.folder / "log"
        before = log.read_text().count(says)
        self.daemon.process.send_signal(signal.SIGHUP)
        self.until(lambda: log.read_text().count(says) != before, log)

    def until(self, holds, log):
        for _ in range(3000):
            if holds():
                return
            select.select([], [], [], 0.02)
        self.fail(log.read_text())

    def metrics(self):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(f"{self.folder}/sock")
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def over_tls(self, name):
        return {
            "TIDEPOOL_FABRIC": self.daemon.addresses[1],
            "TIDEPOOL_FABRIC_CA": f"{self.ca}/ca.crt",
            "TIDEPOOL_FABRIC_CERT": f"{self.ca}/{name}.crt",
            "TIDEPOOL_FABRIC_KEY": f"{self.ca}/{name}.key",
        }
