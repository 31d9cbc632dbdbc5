# SPDX-License-Identifier: Apache-2.0
"""RDMA device removed while a program's far pages go by it: goes on over TCP, same bytes; connections leave nothing."""

from vmtest import rdma
from vmtest.places import BUILD
from vmtest.topology import Machine

SECONDS = 240
RECONNECTS = 8
MACHINES = [Machine(memory="384M", cpus=1, link=True, modules=rdma.MODULES) for _ in range(2)]
PROGRAMS = {
    **rdma.PROGRAMS,
    "usr/bin/gups": BUILD / "bench" / "gups",
    "usr/bin/page_fetch": BUILD / "bench" / "page_fetch",
}

SERVER = """
soft_roce
lend 96M
held() { for kind in mr qp; do rdma resource show $kind | grep fabricmgr || true; done; }
host meet up
host meet reconnected
for try in $(seq 100); do
  [ -n "$(held)" ] || break
  usleep 200000
done
held
[ -z "$(held)" ] || fail "the device still holds what was for clients that have gone"
host meet counted
wait
"""

# remote_timeout is far longer than the test: what goes on does so because it heard of the removal.
CLIENT = f"""
soft_roce
host meet up
for round in $(seq {RECONNECTS}); do page_fetch 10.9.0.1:7000 latency 5 verbs 4096 1 >/dev/null; done
host meet reconnected
host meet counted
tidepool doctor --json --far remote:10.9.0.1:7000 >/results/doctor.json || true
before=$(rdma_packets)
tidepool run --dram 24M --far remote:10.9.0.1:7000 --stats /results/stats.json \\
  --conf strict:true,compress:off,remote_timeout:600s -- gups --size 67108864 --threads 1 --seconds 20 --verify \\
  >/results/gups.json 2>/results/said.txt 9>&- &
program=$!
many_packets() {{ [ $(($(rdma_packets) - before)) -gt 48000 ]; }}
wait_for 120 many_packets
tidepool stat $program --json >/results/by_rdma.json
# The kernel removes a device at once, but returns when nobody has it open any more.
rdma link delete rxe0 9>&- &
wait $program
host kill 0
"""

SCRIPTS = [SERVER, CLIENT]


def far(stats):
    return next(tier for tier in stats["tiers"] if tier["kind"] == "fetch")


def check(results):
    client = results[1]
    assert client.json("gups.json")["verified"], "updates were lost"
    said = client.text("said.txt")
    assert "go over TCP" in said, f"nobody said that pages go another way: {said}"
    first, last = far(client.json("by_rdma.json")), far(client.json("stats.json"))
    assert first["transport"] == "verbs" and "transport_note" not in first, first
    # A connection that nothing was asked of since has not noticed.
    assert last["transport"] in ("tcp", "verbs and tcp") and last["transport_note"] in said, last
    assert last["transport_note"] == "the RDMA device has gone", last
    assert last["reads_bytes"] > first["reads_bytes"], "nothing was read afterwards"
    doctor = [one for one in client.json("doctor.json")["checks"] if one["name"].startswith("far-")]
    assert doctor[0]["transport"] == "verbs", doctor
    return [
        f"by RDMA until {first['reads_bytes'] >> 20} MiB were read, {last['reads_bytes'] >> 20} MiB in all; "
        f"{last['transport_note']}",
        f"{RECONNECTS} connections came and went: no registration and no queue pair stayed at the server",
    ]
