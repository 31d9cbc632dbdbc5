# SPDX-License-Identifier: Apache-2.0
"""Runs one test: boots its machines, answers them, waits, collects, has the test check what came back."""

import dataclasses
import importlib.util
import shutil
import sys
import threading
import time
import traceback

from . import initramfs
from .machine import EmulatorCrash, Running, wait_all
from .places import HERE, RUNS, VmError, say
from .topology import size_of

EVERYWHERE = ["virtio_blk"]  # the disk of results
LINK = ["virtio_net"]
BOOTS = 3


@dataclasses.dataclass
class Outcome:
    name: str
    seconds: float = 0
    cpu_seconds: float = 0  # what its machines used of processors
    error: str = ""  # empty: passed
    notes: list = dataclasses.field(default_factory=list)

    @property
    def passed(self):
        return not self.error


def load(path):
    """A test is a Python file with MACHINES, SCRIPT (or SCRIPTS, one a machine), SECONDS, and perhaps check()."""
    spec = importlib.util.spec_from_file_location(f"vm_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.name = path.stem.replace("_", "-")
    if not hasattr(module, "SCRIPTS"):
        module.SCRIPTS = [module.SCRIPT] * len(module.MACHINES)
    return module


def load_all():
    return [load(path) for path in sorted((HERE / "tests").glob("*.py"))]


def modules_of(machine):
    return EVERYWHERE + (LINK if machine.link else []) + machine.modules


class Meeting:
    """`host meet NAME`: every machine of the test waits until all have come."""

    def __init__(self, count, seconds):
        self.count = count
        self.seconds = seconds
        self.barriers = {}
        self.lock = threading.Lock()

    def wait(self, name):
        with self.lock:
            barrier = self.barriers.setdefault(name, threading.Barrier(self.count))
        try:
            barrier.wait(self.seconds)
        except threading.BrokenBarrierError:
            raise VmError(f"the others did not come to '{name}'") from None


def switch(machines, hosts, words):
    """A CXL switch: `show SERIAL`, `bind SERIAL HOST`, `unbind SERIAL`, as fabricmgr's `cxl_switch` says them. `hosts` tells
    in which machine a host's port is."""
    verb, serial = words[0], int(words[1], 0)
    ports = [(one, place) for one in machines for place, device in enumerate(one.devices()) if device.serial == serial]
    if not ports:
        raise VmError(f"there is no device {words[1]}")
    bound = next((port for port in ports if port[1] in port[0].plugged), None)
    if verb == "show":
        names = [name for name, index in hosts.items() if bound and machines[index] is bound[0]]
        device = ports[0][0].devices()[ports[0][1]]
        # Of several hosts in one machine the switch knows the one that it was told last.
        name = bound[0].bound_as.get(serial, names[0]) if bound else "-"
        return f"{size_of(device.size)} {name}"
    if verb == "unbind":
        if bound:
            bound[0].unplug(bound[1])
        return "ok"
    wanted = next((port for port in ports if port[0] is machines[hosts[words[2]]]), None)
    if verb != "bind" or wanted is None:
        raise VmError(f"the switch cannot {' '.join(words)}")
    if bound and bound[0] is not wanted[0]:
        raise VmError(f"{words[1]} is bound to another host")
    if not bound:
        wanted[0].plug(wanted[1])
    wanted[0].bound_as[serial] = words[2]
    return "ok"


class Test:
    def __init__(self, module, base, modules):
        self.module = module
        self.name = module.name
        self.slots = getattr(module, "SLOTS", 1)  # processors that it keeps busy
        self.alone = getattr(module, "ALONE", False)  # it compares speeds
        self.base = base
        self.modules = modules
        self.folder = RUNS / module.name
        self.outcome = Outcome(module.name)
        self.killed = set()  # machines that the test has ended; they leave no results

    def answer(self, running, words):
        """What a guest can ask of the host."""
        verb, rest = words[0], words[1:]
        if verb == "begin":
            running.began = True
        elif verb == "say":
            self.say(" ".join(rest))
        elif verb == "meet":
            self.meeting.wait(rest[0])
        elif verb == "plug":
            running.plug(int(rest[0]))
        elif verb == "unplug":
            running.unplug(int(rest[0]))
        elif verb == "switch":
            return switch(self.running, getattr(self.module, "HOSTS", {}), rest)
        elif verb == "event":
            running.event(int(rest[0]), int(rest[1], 0))
        elif verb == "kill":
            self.killed.add(int(rest[0]))
            self.running[int(rest[0])].kill()
        else:
            raise VmError(f"the host knows no '{verb}'")

    def say(self, text):
        say(f"{self.module.name} {time.monotonic() - self.started:4.0f} s: {text}")

    def programs(self):
        """What the test needs besides what all machines have: {name in the machine: path here}."""
        return getattr(self.module, "PROGRAMS", {})

    def boot(self):
        """boot_once(), again if QEMU crashed: 10.0 sometimes fails an assertion of its own (iotlb_to_section) when the
        firmware or a driver changes the memory map while another emulated processor runs. On busy processors one guest in a
        hundred hangs, or ends, before its script begins."""
        for _ in range(BOOTS - 1):
            try:
                return self.boot_once()
            except EmulatorCrash as crash:
                say(f"{self.module.name}: {crash}; once more")
                self.outcome.notes.append(f"{crash}: run again")
        return self.boot_once()

    def boot_once(self):
        self.meeting = Meeting(len(self.module.MACHINES), self.module.SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.killed.clear()
        running = self.running = []
        try:
            for index, machine in enumerate(self.module.MACHINES):
                order = self.modules.order(modules_of(machine))
                environment = {"MACHINE": index, "MACHINES": len(self.module.MACHINES)}
                more = initramfs.addition(self.module.SCRIPTS[index], order, environment, self.programs())
                running.append(Running(index, machine, self.folder, self.base + more, self.answer))
            return wait_all(running, self.module.SECONDS)
        finally:
            for machine in running:
                machine.end()
                self.outcome.cpu_seconds += machine.cpu_seconds
            # The devices' memory and what was spoken through; the logs stay.
            for path in [*self.folder.glob("*.mem"), *self.folder.glob("*.sock")]:
                path.unlink()

    def judge(self, results):
        for index, result in enumerate(results):
            if result is None:
                continue  # another one failed before it had ended
            for name, content in result.files.items():
                (self.folder / f"{index}-{name}").write_bytes(content)
            if result.status != 0 and index not in self.killed:
                last = "\n    ".join(result.output.strip().splitlines()[-15:]) or self.running[index].last_words()
                status = "no status" if result.status is None else f"status {result.status}"
                raise VmError(f"the script of machine {index} ended with {status}:\n    {last}")
        if hasattr(self.module, "check"):
            self.outcome.notes += self.module.check(results) or []

    def attempt(self):
        """What went wrong; empty if nothing did."""
        try:
            self.judge(self.boot())
        except (VmError, AssertionError, OSError) as error:
            return str(error) or traceback.format_exc(limit=2)
        except Exception:  # a fault of the test itself is a failed test, not the end of the run
            return traceback.format_exc()
        return ""

    def run(self, standstill):
        """Again, if it failed while everything stood still for a while: leases and time limits ran out meanwhile."""
        self.started = time.monotonic()
        say(f"{self.module.name}: starts ({len(self.module.MACHINES)} machine(s), {self.module.SECONDS} s at most)")
        for left in reversed(range(BOOTS)):
            before = standstill.seconds
            self.outcome.error = self.attempt()
            if not self.outcome.error or standstill.seconds == before or left == 0:
                break
            lost = f"failed, and everything stood still for {standstill.seconds - before:.0f} s meanwhile: run again"
            self.say(lost)
            self.outcome.notes.append(lost)
        self.outcome.seconds = time.monotonic() - self.started
        verdict = "passed" if self.outcome.passed else "FAILED"
        say(f"{self.module.name}: {verdict} after {self.outcome.seconds:.0f} s, {self.outcome.cpu_seconds:.0f} s of processors")
        for note in self.outcome.notes:
            say(f"{self.module.name}: {note}")
        sys.stderr.flush()
        return self.outcome
