# SPDX-License-Identifier: Apache-2.0
"""A logical device goes from host to host; the first one's agent is killed at every step and started again: the same end."""

from vmtest import form
from vmtest.places import BUILD
from vmtest.topology import Device, Machine, Window

SECONDS = 600
HOSTS = {"node0": 0, "node1": 1, "manager": 0}
MODULES = ["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax"]
PROGRAMS = {"usr/bin/checked_pages": BUILD / "vm" / "checked_pages"}


def machine():
    slice_of_pool = Device("256M", file="pool.mem", offset="256M", plugged=False, serial=0x5001)
    return Machine(memory="512M", cpus=1, link=True, windows=[Window("1G", [slice_of_pool])], modules=MODULES)


MACHINES = [machine(), machine()]
# Some of the steps, all along the way.
NAMED = [
    "sent POST /vN/hosts",
    "sent GET /vN/regions/N/access",
    "wrote regionN/commit 1",
    "wrote device_dax/new_id daxN.N",
    "wrote tidepool/agent.journal held",
    "told a program notice 2",
    "told a program notice 3",
    "wrote device_dax/unbind daxN.N",
    "wrote regionN/commit 0",
    "sent POST /vN/regions/N/release",
    "wrote tidepool/agent.journal gone",
]
SCRIPTS = [f"{form.steps(NAMED)}\n. /lib/guest/pooling.sh; story agent", ". /lib/guest/pooling.sh; other_host"]


def check(results):
    steps = results[0].text("steps").splitlines()
    missed = [name for name in NAMED if name not in steps]
    assert not missed, f"never killed at: {missed}"
    kills = len(results[0].text("kills").splitlines())
    passed = results[0].text("passed").splitlines() if "passed" in results[0].files else []
    return [f"killed {kills} times, at {len(steps)} of {len(steps) + len(passed)} steps"]
