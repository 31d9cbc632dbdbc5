# SPDX-License-Identifier: Apache-2.0
"""A region on a CXL device is drained while a program uses it: without room elsewhere it waits, with room the pages move."""

from vmtest.pooled import HOSTS, PROGRAMS, machine  # noqa: the runner reads them

SECONDS = 400
SLOTS = 0.625  # its machines wait for one another
MACHINES = [machine(slices=2), machine(slices=2)]

MANAGER = r"""
. /lib/guest/fabric.sh
# Pages of a device are slow to emulate: five granules go there.
PROGRAM="tidepool run --dram 8M --far fabric:256M --conf strict:true,compress:off,remote_timeout:60s -- checked_pages 16"

# start: the program, with its pages in the region that node0 has.
start() {
  rm -f /tmp/filled /tmp/stop
  fabricmgr device cordon "$2" >/dev/null
  fabricmgr region assign --host node0 --size 256M >/dev/null
  wait_for 60 here
  $PROGRAM /tmp/filled /tmp/stop >/results/said-$1 2>/results/errors-$1 9>&- &
  program=$!
  wait_for 120 test -e /tmp/filled
  wait_for 20 uses $program 1
  region=$(region_id node0)
  host say "the program uses region $region"
}
# drain: its region, by a command that waits for the end.
drain() {
  fabricmgr region drain "$region" 9>&- &
  drain=$!
}
# ends: all its pages are as it wrote them.
ends() {
  touch /tmp/stop
  wait $program || fail "the program did not end well: $(cat /results/said-* /results/errors-*)"
}
operation_says() { fabricmgr operation list --json >/tmp/operations && grep -q "$1" /tmp/operations; }

lab_manager 'cxl_switch = "/lib/guest/cxl-switch.sh"'
fabricmgr pool add cxl --class cxl
for number in 1 2; do
  fabricmgr device add ld$number --pool cxl --address cxl:0x500$number --granularity 256M
done
lab_agent
host meet up

start room ld2
drain
wait_for 60 operation_says "process $program waits: there is no room elsewhere"
uses $program 1 || fail "the pages are gone"
fabricmgr operation list
host say "the drain says that process $program waits for room"
ends
wait $drain || fail "the drain did not end well"
region_is_there "$region" && fail "the region is there still"
nothing_here || fail "something is left: $(ls $CXL)"
host say "it ended well, and the region is free and erased"

start move ld2
fabricmgr device uncordon ld2
drain
wait $drain || fail "the drain did not end well"
region_is_there "$region" && fail "the region is there still"
kill -0 $program || fail "the program ended meanwhile"
uses $program 1 || fail "it has no pages on the other device"
fabricmgr region list
cat /tmp/stat >/results/stat
host say "its pages are on the other device, the first one is free and erased"
fabricmgr region assign --host node1 --size 256M
host meet assigned
host meet used
ends
host say "the other host read zeros; the program ended well"
fabricmgr region drain "$(region_id node1)"
freed "both devices are free and erased"
fabricmgr audit verify
host meet down
nothing_here || fail "something is left: $(ls $CXL)"
"""

HOST = r"""
. /lib/guest/fabric.sh
SIZE=268435456
host meet up
lab_host
lab_agent
host meet assigned
wait_for 60 here
device_bytes zero /dev/dax0.0 0 $SIZE || fail "the region is not empty"
device_bytes fill /dev/dax0.0 0 $SIZE
host meet used
host meet down
nothing_here || fail "something is left: $(ls $CXL)"
"""

SCRIPTS = [MANAGER, HOST]


def check(results):
    for name in ("said-room", "said-move"):
        said = results[0].text(name).strip()
        assert not said, said
    moved = results[0].json("stat")
    return [f"{moved['managed_bytes'] >> 20} MiB of a running program: drained, and not"]
