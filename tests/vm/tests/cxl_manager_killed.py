# SPDX-License-Identifier: Apache-2.0
"""A logical device goes from host to host; the manager is killed at every step and started again: the same end."""

from vmtest import form
from vmtest.pooled import HOSTS, PROGRAMS, kills, machine  # noqa: the runner reads them

SECONDS = 600
SLOTS = 0.5  # it waits for daemons that start again
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
    return [kills(results, NAMED)]
