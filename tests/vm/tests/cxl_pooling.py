# SPDX-License-Identifier: Apache-2.0
"""Two logical devices, two hosts: bound, attached, drained under fastText, detached, sanitized, bound to the other: zeros."""

from vmtest import form
from vmtest.pooled import HOSTS, machine  # noqa: the runner reads them

SECONDS = 600
SLOTS = 0.625  # its machines wait for one another
ROUNDS = 1 if form.SHORT else 3
MACHINES = [machine(memory="640M", slices=2), machine(slices=2)]

COMMON = f"""
. /lib/guest/fabric.sh
ROUNDS="{" ".join(str(number) for number in range(1, ROUNDS + 1))}"
SIZE={256 << 20}
"""

MANAGER = COMMON + r"""
# is_left ID: its host has given the region back.
is_left() {
  fabricmgr region list --json >/tmp/list
  case "$(tr '{' '\n' </tmp/list | grep "\"id\":$1,")" in *'"attached"'* | *'"draining"'*) return 1 ;; esac
}

lab_manager 'cxl_switch = "/lib/guest/cxl-switch.sh"'
fabricmgr pool add cxl --class cxl
for number in 1 2; do
  fabricmgr device add ld$number --pool cxl --address cxl:0x500$number --granularity 256M
done
lab_agent
host meet up
host say plain
train plain fasttext
for round in $ROUNDS; do
  fabricmgr device cordon ld2 >/dev/null
  (
    train pooled-$round tidepool run --dram 25% --far fabric:256M --conf strict:true --stats /results/stats-$round.json -- fasttext
  ) 9>&- &
  trainer=$!
  wait_for 120 pidof fasttext >/dev/null
  program=$(pidof fasttext)
  wait_for 120 uses $program 1
  region=$(region_id node0)
  host say "round $round: fastText uses the device that was bound to node0"

  fabricmgr device uncordon ld2 >/dev/null
  fabricmgr region drain "$region" 9>&- &
  drain=$!
  wait_for 60 is_left "$region"
  uses $program 1 || fail "fastText ended before its pages were on the other device"
  host say "round $round: while it trains, its pages have moved to another device; this one is detached"
  wait $drain || fail "the drain did not end well"
  region_is_there "$region" && fail "the region is there still"
  host say "round $round: and erased"

  fabricmgr region assign --host node1 --size 256M >/dev/null
  host meet assigned-$round
  host meet used-$round
  fabricmgr region drain "$(region_id node1)" 9>&- || fail "the drain did not end well"
  wait $trainer || fail "fastText did not end well"
  freed "round $round: node1 read zeros, wrote, and gave it back; fastText has ended, all is given back and erased"
  wait_for 60 nothing_here
  host meet over-$round
done
fabricmgr region assign --host node0 --size 256M >/dev/null
wait_for 60 here
device_bytes zero /dev/dax0.0 0 $SIZE || fail "the region is not empty"
fabricmgr region drain "$(region_id node0)" >/dev/null
freed "node0 reads zeros where node1 wrote"
nothing_here || fail "something is left: $(ls $CXL)"
fabricmgr audit verify
fabricmgr device list
host meet down
"""

HOST = COMMON + r"""
host meet up
lab_host
lab_agent
for round in $ROUNDS; do
  host meet assigned-$round
  wait_for 60 here
  device_bytes zero /dev/dax0.0 0 $SIZE || fail "the region is not empty"
  device_bytes fill /dev/dax0.0 0 $SIZE
  host meet used-$round
  host meet over-$round
  nothing_here || fail "something is left: $(ls $CXL)"
done
host meet down
"""

SCRIPTS = [MANAGER, HOST]


def check(results):
    demoted = []
    for number in range(1, ROUNDS + 1):
        stats = results[0].json(f"stats-{number}.json")
        assert results[0].text("plain.sum") == results[0].text(f"pooled-{number}.sum"), "another model"
        assert not stats["errors"], stats
        demoted.append(stats["demoted_bytes"] >> 20)
    return [f"fastText, MiB that went to the devices: {demoted}; each time the same model as without"]
