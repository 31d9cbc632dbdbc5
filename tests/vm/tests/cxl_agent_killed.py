# SPDX-License-Identifier: Apache-2.0
"""A logical device goes from host to host; the first one's agent is killed at every step and started again: the same end."""

from vmtest import form
from vmtest.pooled import HOSTS, PROGRAMS, kills, machine  # noqa: the runner reads them

SECONDS = 600
SLOTS = 0.625  # it waits for daemons that start again
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
    return [kills(results, NAMED)]
