# SPDX-License-Identifier: Apache-2.0
"""Faults, one after the other or two at once, chosen by a seed: each begins, lasts, and is mended. One seed chooses the
same ones again; what they meet is not the same."""

import contextlib
import itertools
import os
import random
import signal
import threading
import time

from clients import GHOSTS
from cluster import HOSTS, MANAGERS, SERVERS
from recorder import OK, Recorder

RESTORED = 0.15  # so often the store is put back from a backup, which nobody has changed anything since
FOLLOWED = 0.25  # so often one fault is alone, and lasts until others go on without what it has met
NEVER = 120  # seconds until what has to happen counts as never happening
LEADER = "leader"  # the manager that leads when the fault begins
LASTS = (0.3, 9.0)  # seconds: the lead ends after three, or some more if etcd has a new leader, too
PAUSE = (0.3, 5.0)  # a leader that is followed by another one takes some seconds of it


class Fault:
    """One that lasts; begin() and end() are called once each, by one thread."""

    def __init__(self, name, begin, end):
        self.name = name
        self.begin = begin
        self.end = end


class Nemesis:
    def __init__(self, cluster, seed, say, nobody=contextlib.nullcontext):
        """`nobody`: for as long as nobody else may change anything."""
        self.cluster = cluster
        self.nobody = nobody
        self.chance = random.Random(seed)
        self.say = say
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.wrong = None
        self.memory_lost = False  # a memory server was killed
        self.restored = False
        self.happened = []

    def run(self):
        try:
            while not self.over.is_set():
                if self.chance.random() < RESTORED:
                    self.restore()
                if self.chance.random() < FOLLOWED:
                    self.see_it_followed()
                faults = [self.choose() for _ in range(self.chance.choice((1, 1, 2)))]
                lasts, pause = self.chance.uniform(*LASTS), self.chance.uniform(*PAUSE)
                self.play(faults, lasts)
                self.over.wait(pause)
        except Exception as error:
            self.wrong = f"the nemesis ended: {error!r}"
            raise

    def see_it_followed(self):
        """One node of three may be gone for ever: another one leads."""
        leader = self.cluster.leader()
        how = self.chance.choice((self.kill_manager, self.kill_node, self.cut_off))
        if leader is None:
            return
        fault = how(leader)
        self.say(f"{fault.name} until it is followed")
        self.happened.append(fault.name)
        others = Recorder(self.cluster.sock(node) for node in MANAGERS if node != leader)
        fault.begin()
        try:
            _, _, answer = others.change(f"/v1/hosts/{GHOSTS[0]}", {"labels": {"led": "not-by." + leader}},
                                         time.monotonic() + NEVER, "PATCH")
        finally:
            fault.end()
        if answer.outcome != OK:
            self.wrong = f"nobody has followed {leader}: {fault.name}"

    def restore(self):
        """The state goes back, to a term that devices may have a successor of by then; what devices did meanwhile is
        found out."""
        self.say("restore a backup")
        self.happened.append("restore a backup")
        self.restored = True
        recorder = Recorder(self.cluster.sock(node) for node in MANAGERS)
        file = self.cluster.folder / f"backup-{len(self.happened)}"
        with self.nobody():
            terms = [self.term(recorder)]
            self.cluster.save(file)
            self.over.wait(self.chance.uniform(*LASTS) / 3)
            if self.chance.random() < 0.5:
                leader = self.cluster.managers[self.now(LEADER)]
                leader.end()
                terms.append(self.term(recorder))
            self.cluster.restore(file)
            terms.append(self.term(recorder))
        file.unlink()
        if None in terms or terms != sorted(set(terms)):
            self.wrong = f"before and after a restore the terms are {terms}"

    def term(self, recorder):
        """The leader's term, once there is a leader."""
        _, _, answer = recorder.change(f"/v1/hosts/{GHOSTS[0]}", {"labels": {"restored": "yes"}},
                                       time.monotonic() + NEVER, "PATCH")
        return answer.term if answer.outcome == OK else None

    def play(self, faults, lasts):
        begun = []
        try:
            for fault in faults:
                self.say(fault.name)
                self.happened.append(fault.name)
                fault.begin()
                begun.append(fault)
            self.over.wait(lasts)
        finally:
            for fault in reversed(begun):
                fault.end()

    def choose(self):
        kinds = [(self.kill, 5), (self.stop, 4), (self.kill_node, 2), (self.cut, 5), (self.isolate, 3),
                 (self.fill_disk, 1), (self.step_clock, 2), (self.kill_server, 1 / 3)]
        return self.chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]()

    def manager(self):
        return self.chance.choice((LEADER, LEADER, *MANAGERS))

    def now(self, node):
        return (self.cluster.leader() or MANAGERS[0]) if node == LEADER else node

    def victim(self):
        """What it is called, and how to find its process when the time has come."""
        node = self.manager()
        member = self.chance.choice(MANAGERS)
        host = self.chance.choice(HOSTS)
        return self.chance.choices([
            (f"manager {node}", lambda: self.cluster.managers[self.now(node)]),
            (f"etcd {member}", lambda: self.cluster.etcd[member]),
            (f"agent {host}", lambda: self.cluster.agents[host])], (4, 2, 2))[0]

    def kill(self):
        name, find = self.victim()
        killed = []
        def begin():
            killed.append(find())
            killed[0].end()
        return Fault(f"kill {name}", begin, lambda: killed[0].start())

    def stop(self):
        server = self.chance.choice(SERVERS)
        name, find = self.chance.choice((self.victim(), (f"memory server {server}",
                                                        lambda: self.cluster.servers[server])))
        stopped = []
        def begin():
            stopped.append(find())
            stopped[0].send(signal.SIGSTOP)
        return Fault(f"stop {name}", begin, lambda: stopped[0].send(signal.SIGCONT))

    def kill_manager(self, node):
        process = self.cluster.managers[node]
        return Fault(f"kill manager {node}", process.end, process.start)

    def kill_node(self, node=None):
        node = node or self.manager()
        killed = []
        def begin():
            which = self.now(node)
            killed.extend((self.cluster.managers[which], self.cluster.etcd[which]))
            for process in killed:
                process.end()
        return Fault(f"kill the whole node of {node}", begin, lambda: [process.start() for process in killed])

    def cut(self):
        """Two nodes. What programs have at a memory server waits for them, for much longer than this lasts."""
        pairs = list(itertools.combinations(MANAGERS, 2))
        pairs += itertools.product(MANAGERS, SERVERS + HOSTS)
        pairs += itertools.product(SERVERS, HOSTS)
        one, other = self.chance.choice(pairs)
        ways = self.chance.choice(([(one, other)], [(other, one)], [(one, other), (other, one)]))
        return Fault(" and ".join(f"cut {to} from what {source} sends" for to, source in ways),
                     lambda: [self.cluster.network.cut(*way) for way in ways],
                     lambda: [self.cluster.network.mend(*way) for way in ways])

    def cut_off(self, node):
        ways = [way for other in self.cluster.network.addresses if other != node
                for way in ((node, other), (other, node))]
        return Fault(f"cut {node} off", lambda: [self.cluster.network.cut(*way) for way in ways],
                     lambda: [self.cluster.network.mend(*way) for way in ways])

    def isolate(self):
        """One node from all others; its manager may die before it is heard again."""
        node = self.manager()
        dies = self.chance.random() < 0.5
        hears, speaks = self.chance.choice(((True, False), (False, True), (False, False)))
        ways, alone = [], []
        def begin():
            which = self.now(node)
            alone.append(self.cluster.managers[which])
            others = [other for other in self.cluster.network.addresses if other != which]
            ways.extend([(which, other) for other in others if not hears])
            ways.extend([(other, which) for other in others if not speaks])
            for way in ways:
                self.cluster.network.cut(*way)
        def end():
            if dies:
                alone[0].end()
            for way in ways:
                self.cluster.network.mend(*way)
            alone[0].start()
        silence = "it hears nobody" if speaks else "nobody hears it" if hears else "both ways"
        return Fault(f"cut {node} off from all, {silence}{', until its manager is killed' * dies}", begin, end)

    def fill_disk(self):
        member = self.chance.choice(MANAGERS)
        file = self.cluster.folder / f"etcd-{member}" / "full"
        return Fault(f"fill the disk of etcd {member}", lambda: fill(file), lambda: file.unlink(missing_ok=True))

    def step_clock(self):
        """It stays as it is."""
        node = self.chance.choice(MANAGERS)
        seconds = self.chance.choice((-600, 600, 7200))
        return Fault(f"set the clock of manager {node} to {seconds:+} s",
                     lambda: self.cluster.clock(node).write_text(f"{seconds:+}\n"), lambda: None)

    def kill_server(self):
        server = self.chance.choice(SERVERS)
        process = self.cluster.servers[server]
        def begin():
            self.memory_lost = True
            process.end()
        return Fault(f"kill memory server {server}", begin, process.start)

    def mend_all(self):
        """After run(): nothing is left of any fault but clocks."""
        self.cluster.network.mend_all()
        for process in self.cluster.every():
            process.send(signal.SIGCONT)
            process.start()


def fill(file):
    """With as much as there is room for."""
    with open(file, "wb", buffering=0) as full:
        for piece in (1 << 20, 4096):
            try:
                while True:
                    full.write(bytes(piece))
            except OSError:
                os.fsync(full.fileno())
