# SPDX-License-Identifier: Apache-2.0
"""Between two machines, by RDMA in software: time of a 4 KiB read and bandwidth, beside perftest's, and TCP's."""

import re

from vmtest import rdma
from vmtest.places import BUILD
from vmtest.topology import Machine

SECONDS = 200
ALONE = True  # beside other tests the ratios would be theirs
ROUNDS = 5
MACHINES = [Machine(memory="384M", link=True, modules=rdma.MODULES) for _ in range(2)]
PROGRAMS = {**rdma.PROGRAMS, "usr/bin/page_fetch": BUILD / "bench" / "page_fetch"}
for _name in ("ib_read_lat", "ib_read_bw"):
    PROGRAMS.update(rdma.tool(_name))

# perftest's name for what is measured, its program and options, and the same with our client: (bytes, under way). Each
# is measured beside ours in every round. perftest's own depth of 128 requests, and its list of ends looked at without
# pause (-e: slept for).
PAIRS = {
    "ib_lat": ("ib_read_lat -s 4096 -n 100", "latency 100 {way} 4096 1"),
    "ib_lat_events": ("ib_read_lat -e -s 4096 -n 100", "latency 100 {way} 4096 1"),
    "ib_bw_4k": ("ib_read_bw -s 4096 -t 128 -n 1000", "bandwidth 1000 {way} 4096 128"),
    "ib_bw_64k": ("ib_read_bw -s 65536 -t 16 -n 100", "bandwidth 100 {way} 65536 16"),
}


def port(place):
    return f"$(({18000 + 100 * place} + round))"


# Each round's servers of perftest are there before its clients; ours serves all.
SERVER = (
    f"""
soft_roce
lend 64M
for round in $(seq {ROUNDS}); do
"""
    + "".join(f"  {theirs} -R -p {port(i)} >/dev/null 2>&1 9>&- &\n" for i, (theirs, _) in enumerate(PAIRS.values()))
    + f"""done
listening() {{ [ "$(rdma resource show cm_id | grep -c LISTEN)" -ge $1 ]; }}
wait_for 60 listening {1 + len(PAIRS) * ROUNDS}
host meet up
wait
"""
)


def round_of_pairs():
    """perftest, ours, TCP one after the other, so that what else the host does meanwhile meets all alike. perftest's clients
    now and then end in a segmentation fault when they connect; such a round has no pair."""
    for place, (name, (theirs, ours)) in enumerate(PAIRS.items()):
        to = f"/results/{name}.$round"
        yield f"{theirs} -R -F -p {port(place)} 10.9.0.1 >{to}.perftest 2>/dev/null || rm {to}.perftest"
        yield f"page_fetch 10.9.0.1:7000 {ours.format(way='verbs')} >{to}.verbs"
        yield f"page_fetch 10.9.0.1:7000 {ours.format(way='tcp')} >{to}.tcp"


CLIENT = f"""
soft_roce
host meet up
for round in $(seq {ROUNDS}); do
{chr(10).join(round_of_pairs())}
  host say ours in round $round: $(cat /results/*.$round.verbs)
done
host kill 0
"""

SCRIPTS = [SERVER, CLIENT]


def perftest(text, column):
    """A column of the one row of perftest's table."""
    rows = [line.split() for line in text.splitlines() if re.match(r"\s*\d+\s+\d+\s", line)]
    return float(rows[0][column])


def middle(values):
    return sorted(values)[len(values) // 2]


def beside(results, name, unit):
    """A line on what was measured beside perftest's `name`: middles, and the ratio of each round's pair."""
    rounds = [n for n in range(1, ROUNDS + 1) if f"{name}.{n}.perftest" in results.files]
    assert len(rounds) > ROUNDS // 2, f"{PAIRS[name][0]} did not run"
    column = 4 if unit == "us" else 3  # the typical time, the average bandwidth
    theirs = [perftest(results.text(f"{name}.{n}.perftest"), column) for n in rounds]
    ours, tcp = ([float(results.text(f"{name}.{n}.{way}")) for n in rounds] for way in ("verbs", "tcp"))
    ratios = [one / other for one, other in zip(ours, theirs)]
    return (
        f"{PAIRS[name][0]}: {middle(theirs):.1f} {unit}; ours {middle(ours):.1f} {unit}: {middle(ratios):.2f}x "
        f"({min(ratios):.2f} to {max(ratios):.2f} in {len(rounds)} rounds); TCP {middle(tcp):.1f} {unit}"
    )


def check(results):
    """Prints what was measured; what it should be is no matter of passing, since other load changes it."""
    lines = [beside(results[1], name, "us" if "lat" in name else "MiB/s") for name in PAIRS]
    return [*lines, "emulated machines and network: middles, and of the ratios of pairs"]
