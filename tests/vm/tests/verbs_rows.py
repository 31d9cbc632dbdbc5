# SPDX-License-Identifier: Apache-2.0
"""Embedding rows by RDMA between two machines: bit for bit the same, also when the device goes; rows a second beside TCP."""

from vmtest import rdma
from vmtest.places import BUILD
from vmtest.topology import Machine

SECONDS = 300
ROUNDS = 3
MACHINES = [Machine(memory="384M", cpus=1, link=True, modules=rdma.MODULES) for _ in range(2)]
PROGRAMS = {**rdma.PROGRAMS, "usr/bin/row_fetch": BUILD / "bench" / "row_fetch"}

SERVER = """
soft_roce
lend 96M
host meet up
host meet done
"""

# 256 rows of 256 bytes a request, eight under way: what a table has.
FETCH = (
    "row_fetch --server 10.9.0.1:7000 --region 4194304 --row 256 --batch 256 --in-flight 8 --kinds read,write --seconds 1"
)

CLIENT = f"""
soft_roce
host meet up
for round in $(seq {ROUNDS}); do
  host say round $round
  for way in tcp verbs; do {FETCH} --transport $way >/results/$way.$round; done
done
before=$(rdma_packets)
{FETCH} --transport auto >/results/auto
echo $(($(rdma_packets) - before)) >/results/auto.packets
host say a table
before=$(rdma_packets)
table-on-tier remote:10.9.0.1:7000:64M:transport:verbs 30000 >/results/table.json || fail "the table by RDMA"
packets=$(($(rdma_packets) - before))
echo $packets >/results/packets
host say a table that loses its device after half of $packets packets
before=$(rdma_packets)
table-on-tier remote:10.9.0.1:7000:64M:transport:verbs 30000 >/results/lost.json 2>/results/said 9>&- &
program=$!
half() {{ [ $(($(rdma_packets) - before)) -gt $((packets / 2)) ]; }}
wait_for 150 half
host say it goes
# The kernel removes a device at once, but returns when nobody has it open any more.
rdma link delete rxe0 9>&- &
wait $program || fail "the table that lost its device"
host meet done
"""

SCRIPTS = [SERVER, CLIENT]


def rows_a_second(results, name):
    """(Reads, writes)."""
    lines = results.text(name).splitlines()
    return [float(line.split('"mrows_s": ')[1].split(",")[0]) * 1e6 for line in lines]


def spread(client, way):
    """Least and greatest of the rounds: text for reads, text for writes."""
    rounds = [rows_a_second(client, f"{way}.{n}") for n in range(1, ROUNDS + 1)]
    return [f"{min(one):.0f} to {max(one):.0f}" for one in zip(*rounds)]


def check(results):
    client = results[1]
    assert client.json("table.json")["same"], "other numbers than in local memory"
    assert client.json("lost.json")["same"], "other numbers than in local memory, once the device had gone"
    said = client.text("said")
    assert "rows of 10.9.0.1:7000 go over TCP: the RDMA device has gone" in said, said
    packets = int(client.text("packets"))
    assert packets > 10_000, f"rows did not go by RDMA: {packets} packets"
    verbs, tcp = spread(client, "verbs"), spread(client, "tcp")
    return [
        f"a table by RDMA, {packets} packets, and one that lost its device on the way: bit for bit the same",
        f"rows of 256 bytes, 256 a request, a second: reads {verbs[0]} by RDMA, {tcp[0]} over TCP; "
        f"writes {verbs[1]} and {tcp[1]}; left open: {rows_a_second(client, 'auto')[0]:.0f} reads, "
        f"{int(client.text('auto.packets'))} packets of RDMA",
        f"emulated machines and network, least and greatest of {ROUNDS} rounds",
    ]
