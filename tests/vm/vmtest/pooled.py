# SPDX-License-Identifier: Apache-2.0
"""What tests have in common in which logical devices of one pool go from host to host (guest/fabric.sh, pooling.sh)."""

from .places import BUILD
from .topology import Device, Machine, Window

HOSTS = {"node0": 0, "node1": 1, "manager": 0}
PROGRAMS = {"usr/bin/checked_pages": BUILD / "vm" / "checked_pages"}


def machine(memory="512M", slices=1):
    """One that can be given slices of the pool, 256 MiB each, with serials from 0x5001."""
    # Each behind a window of its own: decoders of one window want their regions in the order of addresses.
    windows = [
        Window("256M", [Device("256M", file="pool.mem", offset=f"{256 * n}M", plugged=False, serial=0x5001 + n)])
        for n in range(slices)
    ]
    modules = ["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax"]
    # One processor each: where two machines of two share two, a timer of an idle one was late by tens of seconds.
    return Machine(memory=memory, cpus=1, link=True, windows=windows, modules=modules)


def kills(results, named):
    """For check(): what `killed` of pooling.sh has come to, each step of `named` among it."""
    steps = results[0].text("steps").splitlines()
    missed = [name for name in named if name not in steps]
    assert not missed, f"never killed at: {missed}"
    passed = results[0].text("passed").splitlines() if "passed" in results[0].files else []
    return f"killed {len(results[0].text('kills').splitlines())} times, at {len(steps)} of {len(steps) + len(passed)} steps"
