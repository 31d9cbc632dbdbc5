# SPDX-License-Identifier: Apache-2.0
"""The kernel's swap over the network: what an unchanged program has without Tidepool where a host lends its memory.

An NBD server that serves memory (nbdkit) on the loopback, as the memory server does; a client that shows it as a file
(nbdfuse), since not every kernel has the driver; and a loop device with direct I/O on that file, to swap to. What the
server takes stands for the other host's memory. Packages: nbdkit, libnbd-bin, fuse3 (packaging/install-deps.sh bench).
"""

import pathlib
import shutil
import socket
import subprocess
import time

from . import swap
from .places import BenchError
from .running import die_with_parent

FOLDER = pathlib.Path("/run/tidepool-bench-nbd")
DISK = FOLDER / "nbd"
MARK = pathlib.Path("/run/tidepool-bench-nbd.device")  # names the loop device that is ours


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Nbd(swap.Swap):
    name = "nbd"

    def __init__(self, limit_bytes):
        super().__init__(limit_bytes)
        self.processes = []

    @staticmethod
    def missing():
        for program in ("nbdkit", "nbdfuse", "losetup"):
            if shutil.which(program) is None:
                return f"no {program} (packaging/install-deps.sh bench)"
        return None if pathlib.Path("/dev/fuse").exists() else "no /dev/fuse (modprobe fuse)"

    @staticmethod
    def clear_leftovers():
        """The swap of a killed harness is empty: its program has ended."""
        if MARK.exists():
            device = MARK.read_text(encoding="ascii")
            if swap.in_use(device):
                swap.command("swapoff", device)
            if pathlib.Path(f"/sys/block/{pathlib.Path(device).name}/loop").exists():
                swap.command("losetup", "--detach", device)
            MARK.unlink()
        if FOLDER.is_mount():
            swap.command("umount", "--lazy", str(FOLDER))

    def set_up(self):
        FOLDER.mkdir(exist_ok=True)
        port = str(_free_port())
        self._start("nbdkit", "--foreground", "--swap", "--ipaddr", "127.0.0.1", "--port", port, "memory",
                    f"{swap.SIZE_GIB}G")  # fmt: skip
        self._await("nbdkit", lambda: _accepts(int(port)))
        self._start("nbdfuse", str(FOLDER), f"nbd://127.0.0.1:{port}")
        self._await("nbdfuse", DISK.exists)
        # Without direct I/O what is swapped out would stay in this machine's page cache.
        words = ("losetup", "--find", "--show", "--direct-io=on", str(DISK))
        self.device = swap.command(*words).strip()
        MARK.write_text(self.device, encoding="ascii")
        name = pathlib.Path(self.device).name
        if pathlib.Path(f"/sys/block/{name}/loop/dio").read_text().strip() != "1":
            raise BenchError(f"nbd peer: {self.device} has no direct I/O on {DISK}")

    def set_down(self):
        self.clear_leftovers()
        self.device = None
        # The client ends by itself when its file is unmounted; the server is told to.
        for process in reversed(self.processes):
            if process is self.processes[0]:
                process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def _start(self, *words):
        self.processes.append(
            subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
                start_new_session=True,
            )
        )

    def _await(self, what, ready):
        for _ in range(500):
            if ready():
                return
            if self.processes[-1].poll() is not None:
                break
            time.sleep(0.02)
        raise BenchError(f"nbd peer: {what} did not start")


def _accepts(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
