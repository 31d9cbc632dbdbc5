# SPDX-License-Identifier: Apache-2.0
"""Between two machines, by RDMA in software: time of a 4 KiB read and bandwidth, beside perftest's, and TCP's."""

import re

from vmtest import rdma
from vmtest.places import BUILD
from vmtest.topology import Machine

SECONDS = 150
ROUNDS = 5
MACHINES = [Machine(memory="384M", link=True, modules=rdma.MODULES) for _ in range(2)]
PROGRAMS = {**rdma.PROGRAMS, "usr/bin/page_fetch": BUILD / "bench" / "page_fetch"}
for _name in ("ib_read_lat", "ib_read_bw"):
    PROGRAMS.update(rdma.tool(_name))

# Each round's servers of perftest are there before its clients; ours serves all.
SERVER = f"""
soft_roce
fabricmgr memserver --listen 10.9.0.1:7000 --size 64M --transport verbs 2>/dev/null 9>&- &
for round in $(seq {ROUNDS}); do
  ib_read_lat -R -s 4096 -n 200 -p $((18000 + round)) >/dev/null 2>&1 9>&- &
  ib_read_lat -R -e -s 4096 -n 200 -p $((18200 + round)) >/dev/null 2>&1 9>&- &
  ib_read_bw -R -s 65536 -n 100 -p $((18100 + round)) >/dev/null 2>&1 9>&- &
done
listening() {{ [ "$(rdma resource show cm_id | grep -c LISTEN)" -ge $1 ]; }}
wait_for 60 listening {1 + 3 * ROUNDS}
host meet up
wait
"""

# One after the other within a round, so that what else the host does meanwhile meets all alike.
CLIENT = f"""
soft_roce
host meet up
for round in $(seq {ROUNDS}); do
  ib_read_lat -R -F -s 4096 -n 200 -p $((18000 + round)) 10.9.0.1 >>/results/ib_lat.txt
  page_fetch 10.9.0.1:7000 latency 200 verbs >>/results/lane_lat.txt
  ib_read_lat -R -F -e -s 4096 -n 200 -p $((18200 + round)) 10.9.0.1 >>/results/ib_lat_events.txt
  page_fetch 10.9.0.1:7000 latency 200 tcp >>/results/tcp_lat.txt
  ib_read_bw -R -F -s 65536 -n 100 -p $((18100 + round)) 10.9.0.1 >>/results/ib_bw.txt
  page_fetch 10.9.0.1:7000 bandwidth 100 verbs >>/results/lane_bw.txt
  page_fetch 10.9.0.1:7000 bandwidth 100 tcp >>/results/tcp_bw.txt
done
host kill 0
"""

SCRIPTS = [SERVER, CLIENT]


def perftest(text, size, column):
    """A column of perftest's table, one value a run."""
    return [float(line.split()[column]) for line in text.splitlines() if re.match(rf"\s*{size}\s+\d+\s", line)]


def middle(values):
    assert len(values) == ROUNDS, values
    return sorted(values)[ROUNDS // 2]


def check(results):
    """Prints what was measured; what it should be is no matter of passing, since other load changes it."""
    text = results[1].text

    def ours(name):
        return middle([float(line) for line in text(name).split()])

    looked, slept = (middle(perftest(text(name), 4096, 4)) for name in ("ib_lat.txt", "ib_lat_events.txt"))
    moved = middle(perftest(text("ib_bw.txt"), 65536, 3))
    lane, bandwidth = ours("lane_lat.txt"), ours("lane_bw.txt")
    return [
        f"4 KiB read: {lane:.0f} us; ib_read_lat {looked:.0f} us: {lane / looked:.2f}x; with events (-e) {slept:.0f} us: "
        f"{lane / slept:.2f}x; TCP {ours('tcp_lat.txt'):.0f} us",
        f"64 KiB reads: {bandwidth:.1f} MB/s; ib_read_bw {moved:.1f} MB/s: {bandwidth / moved:.2f}x; "
        f"TCP {ours('tcp_bw.txt'):.1f} MB/s",
        f"emulated machines; the middle of {ROUNDS} rounds each",
    ]
