# SPDX-License-Identifier: Apache-2.0
"""The server of an embedding table's rows ends in the middle, over TCP and by RDMA: an error that names it, no wrong row."""

from vmtest import rdma
from vmtest.topology import Machine

SECONDS = 280
MACHINES = [Machine(memory="384M", cpus=1, link=True, modules=rdma.MODULES) for _ in range(2)]
PROGRAMS = rdma.PROGRAMS

# How the rows go; after how many hundredths of what a whole run sends; what ends: the server or, at last, its machine.
KILLS = [("tcp", 30, "server"), ("tcp", 70, "server"), ("verbs", 30, "server"), ("verbs", 60, "server")]
KILLS += [("verbs", 80, "machine")]
WAYS = ("tcp", "verbs")

SERVER = f"""
soft_roce
quiet() {{ ! rdma resource show cm_id | grep -q LISTEN; }}
for round in $(seq {len(WAYS) + len(KILLS)}); do
  lend 96M
  host meet up-$round
  host meet over-$round
  kill -9 $server
  wait $server || true
  wait_for 60 quiet
done
"""

CLIENT = r"""
soft_roce
round=0
packets() { case $1 in tcp) cat /sys/class/net/eth0/statistics/tx_packets ;; verbs) rdma_packets ;; esac; }
# train WAY: a table's training beside one in local memory, in the background.
train() {
  round=$((round + 1))
  host meet up-$round
  before=$(packets $1)
  table-on-tier remote:10.9.0.1:7000:64M:transport:$1 30000 >/results/said-$round 2>/results/errors-$round 9>&- &
  program=$!
}
# whole WAY: how many packets it takes is in $whole.
whole() {
  train $1
  wait $program || fail "the table over $1: $(cat /results/errors-$round)"
  whole=$(($(packets $1) - before))
  host meet over-$round
  host say "over $1 it takes $whole packets"
}
reached() { [ $(($(packets $1) - before)) -gt $2 ] || ! kill -0 $program 2>/dev/null; }
# lost WAY HUNDREDTHS server|machine
lost() {
  local status=0
  train $1
  wait_for 150 reached $1 $((whole * $2 / 100))
  kill -0 $program || fail "it ended too soon"
  case $3 in server) host meet over-$round ;; machine) host kill 0 ;; esac
  wait $program || status=$?
  for file in said errors; do mv /results/$file-$round /results/$file-$1-$2; done
  echo $status >/results/ended-$1-$2
}
""" + "".join(
    f"whole {way}\n" + "".join(f"lost {one} {share} {what}\n" for one, share, what in KILLS if one == way) for way in WAYS
)

SCRIPTS = [SERVER, CLIENT]


def check(results):
    notes = []
    for way, share, what in KILLS:
        said, errors, ended = (results[1].text(f"{name}-{way}-{share}").strip() for name in ("said", "errors", "ended"))
        when = f"{way}, the {what} at {share} in a hundred"
        # Numbers that differ would be said on stdout.
        assert not said, f"{when}: other numbers than in local memory: {said}"
        last = errors.splitlines()[-1] if errors else ""
        assert ended == "1" and last.startswith("table-on-tier: "), f"{when}: ended with {ended}, {errors}"
        assert "10.9.0.1:7000" in last, f"{when}: nobody said what was lost: {errors}"
        notes.append(f"{when}: {last}")
    return notes
