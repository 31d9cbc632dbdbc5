# SPDX-License-Identifier: Apache-2.0
"""A whole fabric of real programs: three nodes with an etcd member and a manager each, two memory servers, pool files,
and hosts with an agent and a program. Each node is a network namespace. What ends although it is to run is started
again, as a service manager would. Thread-safe where it says so."""

import base64
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import urllib.request

from network import Network, command

MiB = 1 << 20
MANAGERS = ("m1", "m2", "m3")
SERVERS = ("s1", "s2")
HOSTS = ("a1", "a2", "a3", "a4")
LEASE = "600"  # seconds: longer than any history, so that no program may lose memory for the lease's sake
DISK = 320 * MiB  # of an etcd member: two logs of 64 MiB, made in advance, and the database
POOL = 160 * MiB
PROGRAM = 64 * MiB  # of the fabric, at most, for each program


class Process:
    """One program, which is started again and again until it is to be down. Thread-safe."""

    def __init__(self, name, words, folder, environment=None):
        self.name = name
        self.words = words
        self.log = folder / f"{name}.log"
        self.environment = {**os.environ, **(environment or {})}
        self.lock = threading.Lock()
        self.process = None
        self.wanted = False
        self.starts = 0

    def start(self):
        with self.lock:
            self.wanted = True
            self.look()

    def look(self):
        if self.wanted and (self.process is None or self.process.poll() is not None):
            with open(self.log, "a") as log:
                self.process = subprocess.Popen(self.words, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                                env=self.environment)
            self.starts += 1

    def tend(self):
        """Starts it again if it has ended."""
        with self.lock:
            self.look()

    def send(self, number):
        with self.lock:
            if self.process is not None and self.process.poll() is None:
                self.process.send_signal(number)

    def end(self, number=signal.SIGKILL):
        """For good, or until start()."""
        with self.lock:
            self.wanted = False
            if self.process is None:
                return None
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGCONT)
                self.process.send_signal(number)
            return self.process.wait()


class Cluster:
    def __init__(self, programs, folder):
        self.fabricmgr = str(programs / "fabricmgr")
        self.tidepool = str(programs / "tidepool")
        self.folder = folder
        self.network = Network()
        for node in (*MANAGERS, *SERVERS, *HOSTS):
            self.network.add(node)
        self.ca = folder / "ca"
        self.certify()
        self.pools = [folder / f"pool{number}" for number in (1, 2)]
        for pool in self.pools:
            with open(pool, "wb") as file:
                file.truncate(POOL)
        self.etcd = {node: self.make_etcd(node) for node in MANAGERS}
        self.managers = {node: self.make_manager(node) for node in MANAGERS}
        self.servers = {node: self.make_server(node) for node in SERVERS}
        self.agents = {node: self.make_agent(node) for node in HOSTS}
        self.over = threading.Event()
        self.tending = threading.Thread(target=self.tend)

    def inside(self, node, *words):
        return [*self.network.inside(node), *map(str, words)]

    def address(self, node, port):
        return f"{self.network.addresses[node]}:{port}"

    def sock(self, node):
        return self.folder / f"{node}.sock"

    def certify(self):
        self.tell("ca", "init", "--dir", self.ca)
        every = [word for node in MANAGERS for word in ("--host", self.network.addresses[node])]
        for words in (["server", "api", *every], ["manager", "orders"], *(["memserver", node] for node in SERVERS),
                      *(["host", node] for node in HOSTS)):
            self.tell("ca", "issue", *words, "--dir", self.ca)

    def certificate(self, name):
        return {"cert": self.ca / f"{name}.crt", "key": self.ca / f"{name}.key", "ca": self.ca / "ca.crt"}

    def tell(self, *words):
        """`fabricmgr` on what stands still, or through a socket that `words` name."""
        return command(self.fabricmgr, *map(str, words))

    def make_etcd(self, node):
        """On a disk of its own, which can be filled."""
        data = self.folder / f"etcd-{node}"
        data.mkdir()
        command("mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(data))
        client, peer = (f"http://{self.address(node, port)}" for port in (2379, 2380))
        return Process(f"etcd-{node}", self.inside(
            node, "etcd", *self.membership(node), "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer), self.folder)

    def membership(self, node):
        """What a member is told of itself and the others, also when it is made from a snapshot."""
        peers = {one: f"http://{self.address(one, 2380)}" for one in MANAGERS}
        return ["--name", node, "--data-dir", self.folder / f"etcd-{node}" / "data",
                "--initial-cluster", ",".join(f"{one}={url}" for one, url in peers.items()),
                "--initial-advertise-peer-urls", peers[node]]

    def etcdctl(self, *words):
        return command("env", "ETCDCTL_API=3", "etcdctl", *map(str, words))

    def save(self, file):
        """A backup, as docs/operating.md has it, of the first member that answers."""
        node = next(one for one in MANAGERS if self.ask_etcd(one, "/health"))
        self.etcdctl("--endpoints", self.address(node, 2379), "snapshot", "save", file)

    def restore(self, file):
        """Puts that in the place of what there is. One manager is told to take over from those that devices know."""
        for process in [*self.managers.values(), *self.etcd.values()]:
            process.end()
        for node in MANAGERS:
            shutil.rmtree(self.folder / f"etcd-{node}" / "data")
            self.etcdctl("snapshot", "restore", file, *self.membership(node))
            self.etcd[node].start()
        self.await_etcd()
        first = self.managers[MANAGERS[0]]
        words = first.words
        first.words = [*words, "--take-over"]
        first.start()
        while not self.leads(MANAGERS[0]):
            self.over.wait(0.1)
        first.words = words
        for process in self.managers.values():
            process.start()

    def make_manager(self, node):
        files = {who: self.certificate(who) for who in ("api", "orders")}
        ends = ",".join(self.address(one, 2379) for one in MANAGERS)
        lines = [f'store = "etcd://{ends}/fabrics/histories"', f'state = "{self.folder}/fabric.db"', "[etcd]",
                 f'name = "{node}"', "[unix]", f'path = "{self.sock(node)}"', "[tcp]",
                 f'listen = "{self.address(node, 7780)}"']
        for section, who in (("[tcp]", "api"), ("[memservers]", "orders")):
            lines += [section] if section not in lines else []
            lines += [f'certificate = "{files[who]["cert"]}"', f'key = "{files[who]["key"]}"',
                      f'ca = "{files[who]["ca"]}"', f'crl = "{self.ca}/crl.pem"']
        self.config(node).write_text("\n".join(lines) + "\n")
        self.clock(node).write_text("+0\n")
        clock = {"LD_PRELOAD": "libfaketimeMT.so.1", "FAKETIME_TIMESTAMP_FILE": str(self.clock(node)),
                 "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_CACHE_DURATION": "1", "FAKETIME_DISABLE_SHM": "1",
                 "LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu/faketime"}
        return Process(node, self.inside(node, self.fabricmgr, "serve", "--config", self.config(node)), self.folder,
                       clock)

    def config(self, node):
        return self.folder / f"{node}.toml"

    def clock(self, node):
        """By how much the manager's clock of the day is off: what is written there holds within a second."""
        return self.folder / f"{node}.clock"

    def make_server(self, node):
        words = ["memserver", "--listen", self.address(node, 7700), "--size", "256M", "--threads", "1",
                 "--control", self.address(node, 7710), "--crl", self.ca / "crl.pem"]
        words += [word for name, file in self.certificate(node).items() for word in (f"--{name}", file)]
        return Process(node, self.inside(node, self.fabricmgr, *words), self.folder)

    def make_agent(self, node):
        everywhere = ",".join(f"https://{self.address(one, 7780)}" for one in MANAGERS)
        words = ["agent", "--host", node, "--fabric", everywhere, "--lease", LEASE,
                 "--socket", self.folder / f"agent-{node}.sock", "--journal", self.folder / f"agent-{node}.journal"]
        words += [word for name, file in self.certificate(node).items() for word in (f"--{name}", file)]
        return Process(f"agent-{node}", self.inside(node, self.fabricmgr, *words), self.folder)

    def make_program(self, node):
        """With half of its memory in the fabric, at least."""
        words = self.inside(node, self.tidepool, "run", "--dram", "24M", "--far", f"fabric:{PROGRAM}", "--conf",
                            f"agent:{self.folder}/agent-{node}.sock", "--conf", "remote_timeout:300s,compress:off", "--",
                            "/usr/bin/python3", pathlib.Path(__file__).with_name("tenant.py"), node)
        with open(self.folder / f"program-{node}.log", "a") as log:
            return subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def every(self):
        return [*self.etcd.values(), *self.servers.values(), *self.managers.values(), *self.agents.values()]

    def tend(self):
        while not self.over.wait(0.3):
            for process in self.every():
                process.tend()

    def begin(self):
        """Everything but agents runs; whether it answers already is for its callers to find out."""
        for process in [*self.etcd.values(), *self.servers.values()]:
            process.start()
        self.await_etcd()
        self.tell("init", "--config", self.config(MANAGERS[0]))
        for process in self.managers.values():
            process.start()
        self.tending.start()

    def await_etcd(self):
        while not all(self.ask_etcd(node, "/health") for node in MANAGERS):
            self.over.wait(0.1)

    def leads(self, node):
        """Whether its manager answers as the one that leads."""
        done = subprocess.run([self.fabricmgr, "status", "--fabric", f"unix:{self.sock(node)}"], capture_output=True)
        return done.returncode == 0

    def leader(self):
        """The node that etcd says leads; None: nobody, or no member answers."""
        key = base64.b64encode(b"/fabrics/histories/leader").decode()
        for node in MANAGERS:
            found = self.ask_etcd(node, "/v3/kv/range", {"key": key})
            if found is not None:
                value = b"".join(base64.b64decode(pair["value"]) for pair in found.get("kvs", ()))
                return next((one for one in MANAGERS if one.encode() in value), None)
        return None

    def ask_etcd(self, node, path, body=None):
        """One member; None: it has no answer."""
        request = urllib.request.Request(f"http://{self.address(node, 2379)}{path}",
                                         None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                return json.load(answer)
        except (OSError, http.client.HTTPException):
            return None

    def stop_tending(self):
        self.over.set()
        if self.tending.is_alive():
            self.tending.join()

    def end(self):
        self.stop_tending()
        for process in self.every():
            process.end()
        self.network.end()
        for node in MANAGERS:
            command("umount", str(self.folder / f"etcd-{node}"))
