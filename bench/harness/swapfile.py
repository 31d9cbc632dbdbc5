# SPDX-License-Identifier: Apache-2.0
"""The kernel's swap on a file of a disk: what an unchanged program has without Tidepool where a disk is all there is.

The fair peer of a file tier: the file lies in the same folder, is taken from the disk at once, and the kernel reads and
writes it past its page cache, as it does any swap file.
"""

import os
import pathlib

from . import swap
from .places import BenchError

FOLDER = pathlib.Path(os.environ.get("TIDEPOOL_BENCH_DISK", "/var/tmp"))
FILE = FOLDER / "tidepool-bench-swap"
MARK = pathlib.Path("/run/tidepool-bench-swapfile")  # names the file that is ours


class SwapFile(swap.Swap):
    name = "swapfile"

    @staticmethod
    def missing():
        room = os.statvfs(FOLDER)
        if room.f_bavail * room.f_frsize < swap.SIZE_GIB * 2**30:
            return f"less than {swap.SIZE_GIB} GiB free in {FOLDER} (TIDEPOOL_BENCH_DISK names another folder)"
        return None

    @staticmethod
    def clear_leftovers():
        """The swap of a killed harness is empty: its program has ended."""
        if not MARK.exists():
            return
        path = MARK.read_text(encoding="utf-8")
        if swap.in_use(path):
            swap.command("swapoff", path)
        if os.path.exists(path):
            os.unlink(path)
        MARK.unlink()

    def set_up(self):
        if FILE.exists():
            raise BenchError(f"swapfile peer: there is a file {FILE} already; remove it first")
        MARK.write_text(str(FILE), encoding="utf-8")
        self.device = FILE
        with open(FILE, "xb") as file:
            os.fchmod(file.fileno(), 0o600)
            os.posix_fallocate(file.fileno(), 0, swap.SIZE_GIB * 2**30)

    def set_down(self):
        if self.device is not None:
            self.clear_leftovers()
        self.device = None
