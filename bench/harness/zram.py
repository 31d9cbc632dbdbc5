# SPDX-License-Identifier: Apache-2.0
"""Swap on a compressed RAM disk. Its pool is local memory too, beside the program's limit: figures() says how much."""

import pathlib

from . import swap
from .places import BenchError

DEVICE = pathlib.Path("/dev/zram0")
SYSFS = pathlib.Path("/sys/block/zram0")


class Zram(swap.Swap):
    name = "zram"

    @staticmethod
    def missing():
        return None if DEVICE.exists() else f"no {DEVICE} (modprobe zram)"

    @staticmethod
    def clear_leftovers():
        """What the lock file says was ours."""
        if swap.LOCK.read_text(encoding="ascii") != "ours":
            return
        if swap.in_use(DEVICE):
            swap.command("swapoff", str(DEVICE))
        (SYSFS / "reset").write_text("1")
        swap.LOCK.write_text("", encoding="ascii")

    def set_up(self):
        if swap.in_use(DEVICE):
            raise BenchError(f"zram peer: {DEVICE} is in use as swap; 'swapoff {DEVICE}' first")
        if (SYSFS / "initstate").read_text().strip() == "1":
            raise BenchError(
                f"zram peer: {DEVICE} is set up for something else; 'zramctl --reset {DEVICE}' first"
            )
        swap.LOCK.write_text("ours", encoding="ascii")
        self.device = DEVICE
        (SYSFS / "disksize").write_text(f"{swap.SIZE_GIB}G")

    def set_down(self):
        if self.device is not None:
            self.clear_leftovers()
        self.device = None

    def figures(self):
        """Also the most that its pool took, with which its local memory is complete."""
        pool = int((SYSFS / "mm_stat").read_text().split()[4])
        figures = super().figures()
        text = (SYSFS / "comp_algorithm").read_text()
        return figures | {
            "algorithm": text[text.find("[") + 1 : text.find("]")],
            "compressed_peak_bytes": pool,
            "local_bytes": figures["peak_charged_bytes"] + pool,
        }
