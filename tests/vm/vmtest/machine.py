# SPDX-License-Identifier: Apache-2.0
"""One running machine: QEMU under TCG, its console log, its control line, and what it left when it ended.

Guest and host speak over the second serial port, a line each way: the guest's `host WORDS` waits for the answer; the third
is for programs in the guest that run beside the script (`cxl-switch`). Results
come back as a tar archive that the guest writes to a raw disk as its last act. QEMU ends with the testbed, even if that
was killed.
"""

import ctypes
import io
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import tarfile
import threading
import time

from .packages import kernel
from .places import LIBRARIES, SYSTEM, VmError
from .qmp import Qmp
from .topology import device_words, devices_of, machine_words

PR_SET_PDEATHSIG = 1
RESULT_DISK = 64 << 20
UNPLUG_SECONDS = 60
BOOT_SECONDS = 120  # six at once on two processors take 30
TICKS = os.sysconf("SC_CLK_TCK")
PERIPHERALS = "/machine/peripheral"
# The CXL drivers refuse to commit regions where they see a hypervisor: they cannot flush its caches. The rest is
# what is slow to emulate: protections, without which starting a program takes two thirds of the time; and string
# instructions that move single bytes, each of which is an access of its own to an emulated device: without them
# memory is copied there in words, four times as fast.
CPU = "max,hypervisor=off,la57=off,smap=off,smep=off,pku=off,erms=off,fsrm=off,fzrm=off,fsrs=off"
# The kernel's check that the timer interrupts is one of how many came in a while: an emulator that has to wait for a
# processor delivers too few. Under KVM the kernel leaves it out by itself.
KERNEL = "mitigations=off no_timer_check"
_libc = ctypes.CDLL(None)


def die_with_parent():
    """Between fork and exec."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class EmulatorCrash(VmError):
    """QEMU itself failed, or the guest's kernel did before the test's script began; that says nothing of the program under
    test."""


class Results:
    """What a machine left: exit status of the script, its output, and the files it put into /results."""

    def __init__(self, files, console):
        self.files = files
        self.console = console
        self.status = int(files["status"].decode()) if "status" in files else None
        self.output = self.text("output.txt") if "output.txt" in files else ""

    def text(self, name):
        if name not in self.files:
            raise AssertionError(f"the machine left no {name}; its console: {self.console}")
        return self.files[name].decode(errors="replace")

    def json(self, name):
        return json.loads(self.text(name))


class Running:
    """`answer(machine, words)` is called, on a thread of its own, for every line of the guest; it returns the answer."""

    def __init__(self, index, machine, folder, initrd, answer):
        self.index = index
        self.machine = machine
        self.folder = pathlib.Path(folder)
        self.answer = answer
        self.console = self.folder / f"console-{index}.log"
        self.memory = []  # descriptors of the devices' memory, of which a machine before this one may have some
        self.make_files(initrd)
        self.log = open(self.folder / f"qemu-{index}.log", "w", encoding="utf-8")
        self.process = subprocess.Popen(
            self.command(),
            cwd=self.folder,
            env=dict(os.environ, LD_LIBRARY_PATH=f"{LIBRARIES}:{SYSTEM}/lib/x86_64-linux-gnu"),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            preexec_fn=die_with_parent,
            start_new_session=True,
        )
        self.exit_fd = os.pidfd_open(self.process.pid)
        self.qmp = None
        self.killed = False
        self.began = False  # its script
        self.cpu_seconds = 0.0
        self.plugs = 0
        self.bound_as = {}  # serial number: the host that a switch bound it to
        self.monitor_lock = threading.Lock()
        self.plugged = {place for place, device in enumerate(self.devices()) if device.plugged}
        for line in ("control", "switch"):
            threading.Thread(target=self.serve, args=(line,), daemon=True).start()

    def devices(self):
        return devices_of(self.machine)

    def make_files(self, initrd):
        (self.folder / f"initrd-{self.index}").write_bytes(initrd)
        with open(self.folder / f"results-{self.index}.disk", "wb") as disk:
            disk.truncate(RESULT_DISK)
        for place, device in enumerate(self.devices()):
            # A file may be of several devices: as long as the furthest of them reaches. It is memory, which no disk has to
            # keep up with, and nobody has any more when we and QEMU have ended.
            backend, _ = device_words(self.index, place, device)
            path = self.folder / backend["mem-path"]
            if not path.is_symlink():
                self.memory.append(os.memfd_create(path.name))
                path.symlink_to(f"/proc/{os.getpid()}/fd/{self.memory[-1]}")
            with open(path, "ab") as file:
                if path.stat().st_size < backend["offset"] + backend["size"]:
                    file.truncate(backend["offset"] + backend["size"])

    def command(self):
        i = self.index
        append = f"console=ttyS0 panic=-1 quiet loglevel=4 {KERNEL} {self.machine.kernel}"
        return [
            SYSTEM / "usr" / "bin" / "qemu-system-x86_64",
            *("-L", SYSTEM / "usr" / "share" / "seabios", "-L", SYSTEM / "usr" / "share" / "qemu"),
            *("-accel", "tcg,thread=multi"),
            *("-cpu", CPU),
            *("-nodefaults", "-display", "none", "-no-reboot"),
            *("-kernel", kernel()[0], "-initrd", f"initrd-{i}", "-append", append),
            *("-serial", f"file:console-{i}.log"),
            *("-chardev", f"socket,id=control,path=control-{i}.sock,server=on,wait=off"),
            *("-serial", "chardev:control"),
            *("-chardev", f"socket,id=switch,path=switch-{i}.sock,server=on,wait=off"),
            *("-serial", "chardev:switch"),
            *("-qmp", f"unix:qmp-{i}.sock,server=on,wait=off"),
            *machine_words(i, self.machine),
            *("-drive", f"file=results-{i}.disk,format=raw,if=none,id=results"),
            *("-device", "virtio-blk-pci,drive=results,bus=pcie.0"),
        ]

    def serve(self, line):
        """Answers the guest on one of its lines until QEMU is gone."""
        control = socket.socket(socket.AF_UNIX)
        path = self.folder / f"{line}-{self.index}.sock"
        while self.process.poll() is None:
            try:
                # Relative names only: a Unix socket's path has room for 107 characters.
                control.connect(os.path.relpath(path))
                break
            except OSError:
                time.sleep(0.05)
        else:
            return
        try:
            with control, control.makefile("rw", encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if not line.strip():
                        continue
                    try:
                        text = self.answer(self, line.split()) or "ok"
                    except (VmError, OSError) as error:
                        text = f"error {error}"
                    lines.write(" ".join(text.split()) + "\n")
                    lines.flush()
        except OSError:
            pass  # QEMU ended

    def monitor(self):
        if self.qmp is None:
            self.qmp = Qmp(os.path.relpath(self.folder / f"qmp-{self.index}.sock"))
        return self.qmp

    def plug(self, place):
        """Adds the device that sits in the place-th port of the topology."""
        backend, front = device_words(self.index, place, self.devices()[place])
        with self.monitor_lock:
            self.plugs += 1
            backend["id"] = front["volatile-memdev"] = f"vmem{place}-{self.plugs}"
            self.monitor().call("object-add", **backend)
            self.monitor().call("device_add", **front)
            self.plugged.add(place)

    def unplug(self, place):
        """Asks the guest to let go of a device and waits until it has."""
        with self.monitor_lock:
            self.monitor().call("device_del", id=f"mem{place}")
            # QEMU 10.0 never drops its last reference to a type-3 device: no event DEVICE_DELETED comes, and the memory
            # behind it stays in use. The next device in this port gets an object of its own.
            until = time.monotonic() + UNPLUG_SECONDS
            while any(one["name"] == f"mem{place}" for one in self.monitor().call("qom-list", path=PERIPHERALS)):
                if time.monotonic() > until:
                    raise VmError(f"machine {self.index} does not let go of device {place}")
                time.sleep(0.1)
            self.plugged.discard(place)

    def event(self, place, address):
        """The device reports an event of its media at an address of its own."""
        with self.monitor_lock:
            self.monitor().call(
                "cxl-inject-general-media-event",
                **{"path": f"/machine/peripheral/mem{place}", "log": "informational", "flags": 1, "dpa": address},
                **{"descriptor": 3, "type": 2, "transaction_type": 1},
            )

    def note_cpu(self):
        """What QEMU has used of processors so far. A process that has ended has it until it is waited for."""
        try:
            fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return
        self.cpu_seconds = (int(fields[11]) + int(fields[12])) / TICKS

    def kill(self):
        """As if its power failed. What it had to show is lost with it."""
        self.killed = True
        self.note_cpu()
        self.process.kill()

    def ended(self):
        """QEMU has ended: what it left. VmError when it failed."""
        self.note_cpu()
        status = self.process.wait()
        if self.killed:
            return self.results()
        if status < 0:
            raise EmulatorCrash(f"QEMU was ended by signal {-status}")
        if status != 0:
            self.log.flush()
            said = (self.folder / f"qemu-{self.index}.log").read_text(encoding="utf-8").strip()
            raise VmError(f"QEMU ended with status {status}: {said[-500:]}")
        if not self.began:
            raise EmulatorCrash(f"machine {self.index} ended before its script began: {self.last_words()}")
        return self.results()

    def last_words(self):
        try:
            lines = self.console.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return "its console ends with\n    " + "\n    ".join(lines[-12:])

    def results(self):
        files = {}
        disk = (self.folder / f"results-{self.index}.disk").read_bytes()
        if any(disk[:512]):
            with tarfile.open(fileobj=io.BytesIO(disk)) as archive:
                for member in archive:
                    if member.isfile():
                        name = member.name.removeprefix("./")
                        files[name] = archive.extractfile(member).read()
        return Results(files, self.console)

    def end(self):
        if self.process.poll() is None:
            self.note_cpu()
            self.process.kill()
            self.process.wait()
        for fd in [self.exit_fd, *self.memory]:
            os.close(fd)
        if self.qmp is not None:
            self.qmp.close()
        self.log.close()
        for name in (f"initrd-{self.index}", f"results-{self.index}.disk"):
            (self.folder / name).unlink(missing_ok=True)


def wait_all(machines, seconds):
    """What each machine left when it had ended, in their order. Once the script of one has failed the others are not
    waited for: they leave None. VmError when one has not ended in so many seconds."""
    start = time.monotonic()
    left = {machine.exit_fd: machine for machine in machines}
    found = [None] * len(machines)
    poll = select.poll()
    for fd in left:
        poll.register(fd, select.POLLIN)
    while left:
        passed = time.monotonic() - start
        booting = [machine for machine in left.values() if not machine.began]
        limit = min(seconds, BOOT_SECONDS) if booting else seconds
        if booting and passed > limit:
            raise EmulatorCrash(f"machine {booting[0].index} did not begin its script: {booting[0].last_words()}")
        if passed > limit:
            last = next(iter(left.values()))
            raise VmError(f"machine {last.index} did not end in time: {last.last_words()}")
        for fd, _ in poll.poll(max(0.1, limit - passed) * 1000):
            poll.unregister(fd)
            machine = left.pop(fd)
            found[machine.index] = machine.ended()
            if not machine.killed and found[machine.index].status != 0:
                return found
    return found
