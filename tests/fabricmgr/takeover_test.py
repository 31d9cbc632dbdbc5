#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The manager that leads is killed while many agents have memory of its fabric: three managers on three etcd members,
and agents that are one process (many_agents.cc) with a certificate, an address and a region each. None of them
may be cut off. How long changes wait, what the agents meet, and whether their own clocks, which stop an eighth of a
lease earlier, found it to be over, is printed, and not judged: that is a matter of the machine's speed.

    takeover_test.py FABRICMGR MANY_AGENTS [--agents N] [--lease SECONDS] [--kills N]
"""

import argparse
import http.client
import json
import os
import pathlib
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

GRAIN = 4096
CALLERS = 16  # that give regions out at once
PATIENCE = 900  # seconds until what has to happen counts as never happening
LOOK = 0.2  # seconds between two looks
STANDS_BY = "urn:tidepool:problem:standing-by"


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def until(what, holds):
    end = time.monotonic() + PATIENCE
    while not (found := holds()):
        if time.monotonic() > end:
            raise AssertionError(f"this did not come true: {what}")
        time.sleep(LOOK)
    return found


class Program:
    """One that is killed with this process, however that ends."""

    def __init__(self, words, log, **pipes):
        with open(log, "a") as file:
            self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, words)],
                                            **{"stdout": file, "stderr": file, "stdin": subprocess.DEVNULL, **pipes})

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))

    def ask(self, method, target, body=None):
        """Status and document; 0: nobody answers."""
        try:
            headers = {"Cache-Control": "no-cache", **({"Content-Type": "application/json"} if body else {})}
            self.request(method, target, json.dumps(body) if body else None, headers)
            answer = self.getresponse()
            text = answer.read()
            return answer.status, text if target == "/metrics" else json.loads(text)
        except (OSError, http.client.HTTPException, ValueError):
            self.close()
            return 0, {}


class Manager:
    def __init__(self, number, cluster):
        self.cluster = cluster
        self.folder = cluster.folder
        self.name = f"m{number}"
        self.port = cluster.api_ports[number]
        self.address = f"127.0.0.1:{self.port}"
        self.socket = self.folder / f"{self.name}.sock"
        self.program = None
        ends = ",".join(f"127.0.0.1:{port}" for port in cluster.etcd_ports)
        ca = self.folder / "ca"
        self.config = self.folder / f"{self.name}.toml"
        self.config.write_text(f"""
store = "etcd://{ends}/fabrics/takeover"
state = "{self.folder}/fabric.db"
log_level = "warning"
[etcd]
name = "https://{self.address}"
[unix]
path = "{self.socket}"
[tcp]
listen = "{self.address}"
certificate = "{ca}/api.crt"
key = "{ca}/api.key"
ca = "{ca}/ca.crt"
crl = "{ca}/crl.pem"
""")

    def start(self):
        self.program = Program([self.cluster.fabricmgr, "serve", "--config", self.config],
                               self.folder / f"{self.name}.log")

    def kill(self):
        self.program.kill()
        self.program = None

    def ask(self, method, target, body=None):
        connection = Unix(self.socket)
        try:
            return connection.ask(method, target, body)
        finally:
            connection.close()

    def leads(self):
        return self.program is not None and self.ask("GET", "/v1/status")[0] == 200

    def metric(self, name):
        status, text = self.ask("GET", "/metrics")
        assert status == 200, f"{self.name} shows no metrics: {status}"
        return sum(float(line.split()[-1]) for line in text.decode().splitlines() if re.match(name + r"[ {]", line))


class Cluster:
    def __init__(self, fabricmgr, folder):
        self.fabricmgr = fabricmgr
        self.folder = folder
        ports = free_ports(9)
        self.etcd_ports, self.peer_ports, self.api_ports = ports[:3], ports[3:6], ports[6:]
        self.etcd = []
        self.tell("ca", "init", "--dir", folder / "ca")
        self.tell("ca", "issue", "server", "api", "--host", "127.0.0.1", "--dir", folder / "ca")
        self.managers = [Manager(number, self) for number in range(3)]

    def tell(self, *words):
        subprocess.run([self.fabricmgr, *map(str, words)], check=True, stdout=subprocess.DEVNULL)

    def start(self):
        peers = [f"http://127.0.0.1:{port}" for port in self.peer_ports]
        for number, (port, peer) in enumerate(zip(self.etcd_ports, peers)):
            client = f"http://127.0.0.1:{port}"
            self.etcd.append(Program(
                ["etcd", "--name", f"e{number}", "--data-dir", self.folder / f"etcd{number}",
                 "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                 "--initial-advertise-peer-urls", peer, "--initial-cluster",
                 ",".join(f"e{one}={url}" for one, url in enumerate(peers))], self.folder / f"etcd{number}.log"))
        until("etcd is healthy", lambda: all(map(self.is_healthy, self.etcd_ports)))
        self.tell("init", "--config", self.managers[0].config)
        for manager in self.managers:
            manager.start()

    @staticmethod
    def is_healthy(port):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return json.load(answer)["health"] == "true"
        except OSError:
            return False

    def leader(self):
        return until("somebody leads", lambda: next((one for one in self.managers if one.leads()), None))

    def end(self):
        for manager in self.managers:
            if manager.program is not None:
                manager.kill()
        for member in self.etcd:
            member.kill()


class Agents:
    def __init__(self, program, cluster, count, lease):
        addresses = ",".join(manager.address for manager in cluster.managers)
        self.count = count
        self.program = Program([program, cluster.folder / "ca", count, lease, addresses], cluster.folder / "agents.log",
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, word):
        self.program.process.stdin.write(word.encode() + b"\n")
        self.program.process.stdin.flush()

    def report(self):
        self.tell("report")
        return json.loads(self.program.process.stdout.readline())

    def all_renewed(self):
        """What they have met since the last mark(), once all of them have a new lease."""
        return until("every agent has renewed its lease",
                     lambda: (seen := self.report())["renewed"] == self.count and seen)

    def all_ready(self):
        until("every agent has a connection to each manager", lambda: self.report()["ready"] == self.count)

    def round(self):
        self.tell("mark")
        return self.all_renewed()


def give_each_a_region(leader, count):
    names = queue.SimpleQueue()
    for number in range(count):
        names.put(f"n{number}")
    refused = []

    def give():
        connection = Unix(leader.socket)
        while not refused:
            try:
                name = names.get_nowait()
            except queue.Empty:
                break
            answer = connection.ask("POST", "/v1/regions", {"host": name, "size_bytes": GRAIN})
            if answer[0] // 100 != 2:
                refused.append((name, *answer))
        connection.close()

    callers = [threading.Thread(target=give) for _ in range(CALLERS)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    assert not refused, refused


def furnish(leader, folder, count):
    pool = folder / "pool"
    with open(pool, "wb") as file:
        file.truncate(2 * count * GRAIN + (1 << 20))
    for target, body in (("pools", {"name": "cxl", "class": "cxl"}),
                         ("devices", {"name": "d", "pool": "cxl", "address": str(pool), "granularity_bytes": GRAIN})):
        status, document = leader.ask("POST", f"/v1/{target}", body)
        assert status // 100 == 2, document


def write_again(managers):
    """Seconds until one of them has taken a change."""
    start = time.monotonic()
    for number in range(1 << 30):
        manager = managers[number % len(managers)]
        status, document = manager.ask("PATCH", "/v1/hosts/n0", {"labels": {"led": "by." + manager.name}})
        if status == 200:
            return time.monotonic() - start, manager
        assert status in (0, 500, 503), document
        assert time.monotonic() < start + PATIENCE, "nobody has followed"
        time.sleep(0.01)


def check_nothing_is_lost(leader, agents):
    status, hosts = leader.ask("GET", "/v1/hosts?limit=10000")
    assert status == 200, hosts
    states = [host["state"] for host in hosts["items"]]
    assert states == ["active"] * agents.count, sorted(set(states))
    status, regions = leader.ask("GET", "/v1/regions?limit=10000")
    held = [region["state"] for region in regions["items"]]
    assert held == ["attached"] * agents.count, sorted(set(held))
    expired = {name: leader.metric(f"tidepool_fabric_{name}")
               for name in ("leases_expired_total", "hosts_silent", "hosts_held")}
    assert not any(expired.values()), expired


def kill_one(cluster, agents, options):
    leader = cluster.leader()
    agents.all_ready()
    before = agents.round()
    agents.tell("mark")
    leader.kill()
    others = [manager for manager in cluster.managers if manager is not leader]
    took, following = write_again(others)
    during = agents.all_renewed()
    after = agents.round()
    check_nothing_is_lost(following, agents)
    print(f"{options.agents} agents, leases of {options.lease} s, {os.cpu_count()} processors: a change is accepted "
          f"after {took:.2f} s; every agent has renewed its lease after {during['seconds']:.1f} s; none was cut off; "
          f"{during['lapsed'] + after['lapsed']} were so late that they had stopped by themselves", flush=True)
    for title, seen in (("before", before), ("during", during), ("after", after)):
        print(f"  {title:6}  beats {seen['beats']}, p50 {seen['p50_ms']} ms, p99 {seen['p99_ms']} ms, "
              f"max {seen['max_ms']} ms, rounds without an answer {seen['missed']}, refused {seen['refused']}, "
              f"handshakes {seen['handshakes']}, longest time between two {seen['longest_gap_ms'] / 1000:.1f} s",
              flush=True)
    leader.start()
    until("it stands by", lambda: leader.ask("GET", "/v1/status")[1].get("type") == STANDS_BY)


def main():
    parser = argparse.ArgumentParser(description="the leader is killed while many agents have memory")
    parser.add_argument("fabricmgr")
    parser.add_argument("agents_program")
    parser.add_argument("--agents", type=int, default=300)
    parser.add_argument("--lease", type=int, default=30, help="seconds")
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for logs and all else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        cluster = Cluster(options.fabricmgr, folder)
        try:
            cluster.start()
            leader = cluster.leader()
            furnish(leader, folder, options.agents)
            start = time.monotonic()
            agents = Agents(options.agents_program, cluster, options.agents, options.lease)
            print(f"all have joined after {agents.all_renewed() and time.monotonic() - start:.1f} s", flush=True)
            start = time.monotonic()
            give_each_a_region(leader, options.agents)
            print(f"each has a region after {time.monotonic() - start:.1f} s", flush=True)
            for _ in range(options.kills):
                kill_one(cluster, agents, options)
        except AssertionError:
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()[-3000:]}", flush=True)
            raise
        finally:
            cluster.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
