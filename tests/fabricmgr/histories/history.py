# SPDX-License-Identifier: Apache-2.0
"""One history: a fabric is set up, used while faults come and go, mended, and looked at."""

import json
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time

import audit
import region_model
from clients import GHOSTS, Client, Shared
from cluster import HOSTS, MANAGERS, PROGRAM, SERVERS, Cluster
from nemesis import Nemesis
from recorder import ELSEWHERE, OK, UNKNOWN, Recorder, ask

PATIENCE = 240  # seconds until what has to happen counts as never happening
CLIENTS = 4
AT_WORK = ("reserved", "fenced", "dirty", "scrubbing")


class Wrong(Exception):
    """The history shows a fault of the product."""


class History:
    def __init__(self, programs, seed, seconds, say):
        self.programs = programs
        self.seconds = seconds
        self.say = say
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tidepool-history-", dir="/dev/shm"))
        chance = random.Random(seed)
        self.cluster = Cluster(programs, self.folder)
        self.recorder = Recorder(self.cluster.sock(node) for node in MANAGERS)
        self.shared = Shared()
        self.nemesis = Nemesis(self.cluster, chance.random(), say, self.shared.nobody)
        self.seeds = [chance.random() for _ in range(CLIENTS)]
        self.clients = []
        self.tenants = {}

    def run(self):
        """What it was, in a line. Errors: Wrong, with all that is."""
        self.set_up()
        self.disturb()
        self.settle()
        self.look_again()
        self.end_tenants()
        return self.judge()

    def end(self, keep=None):
        """`keep`: where logs go."""
        for tenant in self.tenants.values():
            tenant.kill()
            tenant.wait()
        self.cluster.end()
        if keep:
            keep.mkdir(parents=True, exist_ok=True)
            for file in [*self.folder.glob("*.log"), *self.folder.glob("*.txt"),
                         *self.folder.glob("*.grants"), *self.folder.glob("fabric.db")]:
                shutil.copy(file, keep)
        shutil.rmtree(self.folder)

    def until(self, what, holds):
        end = time.monotonic() + PATIENCE
        while not (found := holds()):
            if time.monotonic() > end:
                raise Wrong(f"this did not come true: {what}")
            time.sleep(0.05)
        return found

    def must(self, target, body, method="POST"):
        def tried():
            _, _, answer = self.recorder.change(target, body, time.monotonic() + 10, method)
            if answer.outcome not in (OK, UNKNOWN, ELSEWHERE) and answer.code != "unreachable":
                raise Wrong(f"{target}: {answer.document}")
            return answer.outcome == OK
        self.until(f"{method} {target}", tried)

    def all_of(self, kind):
        """The leader's list."""
        def looked():
            leader = self.cluster.leader()
            answer = leader and ask(self.cluster.sock(leader), "GET", f"/v1/{kind}?limit=10000")
            return [answer.document["items"]] if answer and answer.outcome == OK else None
        return self.until(f"GET {kind}", looked)[0]

    def set_up(self):
        self.furnish()
        for number, (host, agent) in enumerate(self.cluster.agents.items()):
            agent.start()
            self.until(f"the agent of {host} is a member", lambda: self.is_member(host))
            kind = ("cxl", "remote")[number % 2]
            self.must("/v1/regions", {"host": host, "size_bytes": PROGRAM, "class": kind})
            self.tenants[host] = self.cluster.make_program(host)
        for host in HOSTS:
            self.until(f"the program on {host} has its memory", lambda: "round 2" in self.said(host))
        pools = {device["id"]: device["address"] for device in self.all_of("devices") if device["class"] == "cxl"}
        self.clients = [Client(seed, self.recorder, self.shared, pools) for seed in self.seeds]

    def furnish(self):
        self.cluster.begin()
        self.must("/v1/pools", {"name": "cxl", "class": "cxl"})
        self.must("/v1/pools", {"name": "far", "class": "remote"})
        for number, pool in enumerate(self.cluster.pools):
            self.must("/v1/devices", {"name": f"p{number}", "pool": "cxl", "address": str(pool)})
        for server in SERVERS:
            self.must("/v1/devices", {"name": server, "pool": "far", "address": self.cluster.address(server, 7710)})
        for host in GHOSTS:
            self.must("/v1/hosts", {"name": host, "lease_ms": 24 * 3600 * 1000})

    def is_member(self, host):
        status = subprocess.run([self.cluster.fabricmgr, "agent", "--status", "--json", "--socket",
                                 self.folder / f"agent-{host}.sock"], capture_output=True)
        return status.returncode == 0 and json.loads(status.stdout)["manager"] == "member"

    def said(self, host):
        if self.tenants[host].poll() is not None:
            raise Wrong(f"the program on {host} ended: {self.words_of(host)}")
        return self.words_of(host)

    def words_of(self, host):
        return (self.folder / f"program-{host}.log").read_text()

    def disturb(self):
        for client in self.clients:
            client.thread.start()
        self.nemesis.thread.start()
        self.nemesis.over.wait(self.seconds)
        self.nemesis.over.set()
        self.nemesis.thread.join()
        for client in self.clients:
            client.over.set()
        for client in self.clients:
            client.thread.join()
        self.nemesis.mend_all()
        self.say("all is mended")

    def settle(self):
        """All members are there again, and nothing is under way."""
        self.must(f"/v1/hosts/{GHOSTS[0]}", {"labels": {"settled": "yes"}}, "PATCH")
        self.until("every region rests", self.rests)

    def rests(self):
        return not any(region["state"] in AT_WORK or region["state"] == "draining" and region.get("drain_left_ms")
                       for region in self.all_of("regions"))

    def look_again(self):
        one = self.clients[0]
        for region in {record.region for record in self.recorder.noted()}:
            self.until("a manager shows regions", lambda: one.look_up(region))
        for client in self.clients:
            for region in client.own:
                client.look_at(region)

    def end_tenants(self):
        for tenant in self.tenants.values():
            tenant.send_signal(signal.SIGTERM)
        for host, tenant in self.tenants.items():
            status = tenant.wait(PATIENCE)
            if status != 0 and not (self.nemesis.memory_lost and status == -signal.SIGBUS):
                self.shared.complain(f"the program on {host} ended with {status}: {self.words_of(host)[-2000:]}")
        for agent in self.cluster.agents.values():
            agent.end()
        for region in self.all_of("regions"):
            if region["host"] in HOSTS and region["state"] in ("attached", "draining", "lost"):
                self.must(f"/v1/regions/{region['id']}/release", {"force": True})
        self.until("every region rests", self.rests)

    def judge(self):
        leader = self.until("somebody leads", self.cluster.leader)
        calls = self.recorder.noted()
        (self.folder / "calls.txt").write_text("\n".join(map(str, calls)))
        wrong = list(self.shared.wrong) + ([self.nemesis.wrong] if self.nemesis.wrong else [])
        records = audit.records_of(self.cluster.fabricmgr, self.cluster.sock(leader))
        wrong += audit.play(records)[0] + audit.check_acknowledged(records, calls)
        wrong += region_model.judge(calls, region_model.WHEN_A_SERVER_DIED if self.nemesis.memory_lost else
                                    region_model.WHEN_RESTORED if self.nemesis.restored else ())
        wrong += self.of_the_independent_checker()
        if wrong:
            raise Wrong("\n".join(wrong))
        made = sum(call.outcome == OK for call in calls)
        if not made:
            raise Wrong("no call has succeeded: nothing is shown")
        return (f"{len(calls)} calls, {made} with success, {sum(call.outcome == UNKNOWN for call in calls)} unknown; "
                f"{len(self.nemesis.happened)} faults; {len(records)} audit records")

    def of_the_independent_checker(self):
        self.cluster.stop_tending()
        for process in self.cluster.managers.values():
            process.end(signal.SIGTERM)
        self.cluster.tell("migrate-store", "--config", self.cluster.config(MANAGERS[0]), "file")
        done = subprocess.run([self.programs / "fabricmgr_check_store", self.folder / "fabric.db"], text=True,
                              capture_output=True)
        return [f"the independent checker: {line}" for line in done.stdout.splitlines()]
