# SPDX-License-Identifier: Apache-2.0
"""A logical device goes from host to host; the manager is killed at every step and started again: the same end."""

from vmtest import form
from vmtest.places import BUILD
from vmtest.topology import Device, Machine, Window

SECONDS = 600
HOSTS = {"node0": 0, "node1": 1, "manager": 0}
MODULES = ["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax"]
PROGRAMS = {"usr/bin/checked_pages": BUILD / "vm" / "checked_pages"}


def machine():
    # One processor each: where two machines of two share two, a timer of an idle one was late by tens of seconds.
    slice_of_pool = Device("256M", file="pool.mem", offset="256M", plugged=False, serial=0x5001)
    return Machine(memory="512M", cpus=1, link=True, windows=[Window("1G", [slice_of_pool])], modules=MODULES)


MACHINES = [machine(), machine()]
# That a region can be made and removed after a kill at every single write is shown by cxl-host and cxl-agent-killed; each
# of the manager's lives in which it erases begins with seconds of unplugging.
FILES = "sanitize:commit:new_id:unbind:delete_region"
# Some of the steps, all along the way.
NAMED = [
    "committed device.add",
    "committed region.assign",
    "runs guest/cxl-switch.sh bind 0x5001 node0",
    "ran guest/cxl-switch.sh bind 0x5001 node0",
    "wrote lab/cxl-NxN.grants granted",
    "committed region.drain",
    "committed region.release",
    "wrote lab/cxl-NxN.grants revoked",
    "committed region.detach",
    "ran guest/cxl-switch.sh bind 0x5001 manager",
    "wrote security/sanitize 1",
    "wrote regionN/commit 1",
    "wrote device_dax/unbind daxN.N",
    "wrote lab/cxl-NxN.grants scrubbed",
    "committed region.free",
]
SCRIPTS = [
    f"{form.steps(NAMED)}\n. /lib/guest/pooling.sh; STEP_FILES={FILES}; story manager",
    ". /lib/guest/pooling.sh; other_host",
]


def check(results):
    steps = results[0].text("steps").splitlines()
    kills = len(results[0].text("kills").splitlines())
    missed = [name for name in NAMED if name not in steps]
    assert not missed, f"never killed at: {missed}"
    passed = results[0].text("passed").splitlines() if "passed" in results[0].files else []
    return [f"killed {kills} times, at {len(steps)} of {len(steps) + len(passed)} steps"]
