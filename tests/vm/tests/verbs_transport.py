# SPDX-License-Identifier: Apache-2.0
"""The transport's, the memory server's and the remote tier's own tests, over RDMA by software within one machine."""

from vmtest import rdma
from vmtest.topology import Machine

SECONDS = 400
SLOTS = 1.5  # clients and server, which look without pause
MACHINES = [Machine(memory="768M", link=True, modules=rdma.MODULES)]
# Left out: what is about TCP and time alone, with threads that keep all processors busy; what counts requests, of which
# lanes make fewer; what says itself where to listen.
TESTS = {
    "transport_lane_test": "*verbs*",
    "transport_row_lane_test": "*verbs*",
    "fabricmgr_memserver_test": "-MemoryServerGrace.*:RegionTable.*:*Concurrency*:*StatTells*:*BadOptions*",
    "tier_remote_tier_test": "*",
    "tier_row_channel_test": "*AgainstAModel*:*Later*:*Refus*:*PushesBack*:*Threads*",
    "tier_row_channel_failure_test": "*Killed*:*Fenced*:*TakenAway*",
}
PROGRAMS = {**rdma.PROGRAMS}
for _name in TESTS:
    PROGRAMS.update(rdma.built(_name))

# That is where their servers listen, and what they say to them goes by RDMA.
SCRIPT = (
    """
soft_roce
export TIDEPOOL_TEST_RDMA=10.9.0.1
run() {
  before=$(rdma_packets)
  timeout 120 "$1" --gtest_filter="$2" >/results/$1.txt 2>&1 || { tail -n 40 /results/$1.txt; fail "$1"; }
  echo "$1 $(($(rdma_packets) - before)) $(grep -c '     OK' /results/$1.txt)" >>/results/packets.txt
}
"""
    + "\n".join(f"host say {name}\nrun {name} '{chosen}'" for name, chosen in TESTS.items())
    + "\n"
)


def check(results):
    notes = []
    for line in results[0].text("packets.txt").splitlines():
        name, packets, passed = line.split()
        assert int(packets) > 500, f"{name} did not go by RDMA: {packets} packets"
        notes.append(f"{name}: {passed} passed, {packets} packets of RDMA")
    assert len(notes) == len(TESTS), notes
    return notes
