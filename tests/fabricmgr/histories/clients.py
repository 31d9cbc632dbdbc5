# SPDX-License-Identifier: Apache-2.0
"""Threads that use a fabric as operators do. Hosts without an agent have what they assign: nobody but they takes it
back. Some regions are everybody's, to be changed by several at once; others are one client's, which writes its stamp
into the pool file and looks whether it is there, as a host would."""

import contextlib
import mmap
import random
import threading
import time

from recorder import OK

GHOSTS = ("h1", "h2", "h3")
GRAIN = 2 << 20
TRIES = 12  # seconds until a client gives a change up
PAUSE = 0.06  # seconds between two verbs, at most: what is judged is to stay small
LIVE = 14  # regions of everybody, at most


class Shared:
    """Of all clients: regions of everybody, and what they found wrong. Thread-safe."""

    def __init__(self):
        self.lock = threading.Lock()
        self.turns = threading.Condition()
        self.busy = 0  # clients that are in the middle of something
        self.held = False
        self.regions = []
        self.wrong = []

    @contextlib.contextmanager
    def turn(self):
        """A client's, for one thing that it does."""
        with self.turns:
            self.turns.wait_for(lambda: not self.held)
            self.busy += 1
        try:
            yield
        finally:
            with self.turns:
                self.busy -= 1
                self.turns.notify_all()

    @contextlib.contextmanager
    def nobody(self):
        """No client does anything meanwhile."""
        with self.turns:
            self.held = True
            self.turns.wait_for(lambda: self.busy == 0)
        try:
            yield
        finally:
            with self.turns:
                self.held = False
                self.turns.notify_all()

    def add(self, region):
        with self.lock:
            self.regions.append(region)

    def drop(self, region):
        with self.lock:
            if region in self.regions:
                self.regions.remove(region)

    def pick(self, chance):
        with self.lock:
            return chance.choice(self.regions) if self.regions else None

    def count(self):
        with self.lock:
            return len(self.regions)

    def complain(self, text):
        with self.lock:
            self.wrong.append(text)


class Client:
    def __init__(self, seed, recorder, shared, pools):
        """`pools`: the file of each device of the class cxl, by the device's id."""
        self.chance = random.Random(seed)
        self.recorder = recorder
        self.shared = shared
        self.pools = pools
        self.own = {}  # regions with this client's stamp, and their extents
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        verbs = [(self.assign, 3), (self.own_one, 3), (self.look_at_own, 3), (self.release_own, 2), (self.read, 8),
                 (self.resize, 3), (self.drain, 3), (self.resume, 3), (self.transfer, 3), (self.release, 2),
                 (self.move_programs, 1)]
        try:
            while not self.over.is_set():
                with self.shared.turn():
                    self.chance.choices([verb for verb, _ in verbs], [weight for _, weight in verbs])[0]()
                self.over.wait(self.chance.uniform(0, PAUSE))
        except Exception as error:  # a thread that dies silently would be a test that shows nothing
            self.shared.complain(f"a client ended: {error!r}")
            raise

    def change(self, region, what, target, body):
        """Its answer, once it is noted; None: nobody knows."""
        start, end, answer = self.recorder.change(target, body, time.monotonic() + TRIES)
        made = answer.outcome == OK
        region = answer.document["id"] if made and region is None else region
        self.recorder.note(start, end, what, region or 0, answer.outcome,
                           answer.document.get("index", 0) if made else 0, answer.term,
                           answer.document.get("detail", ""))
        return answer if made else None

    def region(self, verb, arguments, body):
        region = self.shared.pick(self.chance)
        if region is None:
            return None, None
        return region, self.change(region, (verb, *arguments), f"/v1/regions/{region}/{verb}", body)

    def assign_to(self, host, size, kind):
        answer = self.change(None, ("assign", host, size), "/v1/regions",
                             {"host": host, "size_bytes": size, "class": kind})
        return answer.document["id"] if answer else None

    def assign(self):
        if self.shared.count() >= LIVE:
            return self.release()
        region = self.assign_to(self.chance.choice(GHOSTS), GRAIN * self.chance.randint(1, 3),
                                self.chance.choice(("cxl", "remote", "any")))
        if region is not None:
            self.shared.add(region)

    def read(self):
        region = self.shared.pick(self.chance)
        if region is not None:
            self.look_up(region, self.chance.random() < 0.7)

    def look_up(self, region, latest=True):
        """Whether anybody answered."""
        found = self.recorder.read(f"/v1/regions/{region}", latest)
        if found is None:
            return False
        start, end, answer = found
        there = answer.document
        if answer.outcome == OK:
            what = ("read", there["state"], there["host"], there["size_bytes"])
        elif answer.code == "not-found":
            what = ("read", "gone", "", 0)
            if not answer.old:
                self.shared.drop(region)
        else:
            return False
        self.recorder.note(start, end, what, region, OK, 0, answer.term, "", answer.old)
        return True

    def resize(self):
        size = GRAIN * self.chance.randint(1, 4)
        self.region("resize", (size,), {"size_bytes": size})

    def drain(self):
        deadline = self.chance.choice((0, 0, 1500))
        self.region("drain", (deadline,), {"deadline_ms": deadline} if deadline else {})

    def resume(self):
        self.region("resume", (), {})

    def transfer(self):
        host = self.chance.choice(GHOSTS)
        self.region("transfer", (host,), {"host": host, "force": True})

    def release(self):
        region, answer = self.region("release", (), {"force": True})
        if answer:
            self.shared.drop(region)

    def move_programs(self):
        """Under a program of a host with an agent, which is to notice nothing."""
        found = self.recorder.read("/v1/regions?limit=1000")
        theirs = [region for region in (found[2].document.get("items", ()) if found else ())
                  if region["host"] not in GHOSTS]
        if theirs:
            region = self.chance.choice(theirs)
            verb = "resume" if region["state"] == "draining" and self.chance.random() < 0.5 else "move"
            self.recorder.change(f"/v1/regions/{region['id']}/{verb}", {}, time.monotonic() + TRIES)

    def own_one(self):
        if len(self.own) >= 3:
            return self.release_own()
        region = self.assign_to(self.chance.choice(GHOSTS), GRAIN * self.chance.randint(1, 2), "cxl")
        if region is None:
            return
        while not self.over.is_set():
            found = self.recorder.read(f"/v1/regions/{region}")
            if found is None or found[2].outcome != OK:
                self.over.wait(0.1)
                continue
            self.own[region] = found[2].document["extents"]
            self.stamp(region)
            return

    def stamp(self, region):
        for memory in self.memory(region):
            if memory[:] != bytes(len(memory)):
                self.shared.complain(f"region {region} was given out with a former tenant's bytes")
            memory[:] = bytes([region % 251 + 1]) * len(memory)

    def look_at_own(self):
        if self.own:
            self.look_at(self.chance.choice(list(self.own)))

    def look_at(self, region):
        for memory in self.memory(region):
            if memory[:] != bytes([region % 251 + 1]) * len(memory):
                self.shared.complain(f"region {region} has lost its bytes, though nobody has released it")

    def memory(self, region):
        """Its extents, mapped one after the other."""
        for extent in self.own[region]:
            with open(self.pools[extent["device_id"]], "r+b") as file, mmap.mmap(file.fileno(), 0) as whole:
                with memoryview(whole) as every:
                    with every[extent["offset_bytes"]:extent["offset_bytes"] + extent["length_bytes"]] as piece:
                        yield piece

    def release_own(self):
        if not self.own:
            return
        region = self.chance.choice(list(self.own))
        self.look_at(region)
        del self.own[region]  # whatever becomes of it, it is not touched again
        self.change(region, ("release",), f"/v1/regions/{region}/release", {"force": True})
