# SPDX-License-Identifier: Apache-2.0
"""A logical device given to a host and taken back while agent and manager are killed after more and more steps: the same end."""

from vmtest.topology import Device, Machine, Window

SECONDS = 600
HOSTS = {"node0": 0, "manager": 0}
MACHINES = [
    Machine(
        memory="384M",
        windows=[Window("1G", [Device("256M", plugged=False, serial=0x5001)])],
        modules=["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax"],
    )
]

SCRIPT = r"""
. /lib/guest/fabric.sh
lab
cat >fabric.toml <<'END'
state = "/root/lab/fabric.db"
cxl_switch = "/lib/guest/cxl-switch.sh"
[unix]
path = "/root/lab/fabric.sock"
END
export TIDEPOOL_FABRIC=unix:/root/lab/fabric.sock

# killed NAME STEP PROGRAM...: started again and again, killed each time when it has written to the kernel's device files
# STEP times more than the time before.
killed() {
  local name=$1 step=$2 writes=1 status kills=0
  shift 2
  while [ ! -e /tmp/stop ]; do
    status=0
    KILL_AFTER_WRITES=$writes LD_PRELOAD=/usr/lib/kill_after_writes.so "$@" >>/tmp/$name.log 2>&1 || status=$?
    [ $status = 137 ] || fail "$name ended with $status"
    kills=$((kills + 1))
    echo $kills >/tmp/$name.kills
    writes=$((writes + step))
  done
}
# again COMMAND...: until it succeeds; the manager may be away.
again() { wait_for 60 eval "$* >/tmp/out 2>/dev/null"; }

# Every one of the manager's lives in which it erases begins with an unplugging of five seconds.
killed manager 3 fabricmgr serve --config fabric.toml &
again fabricmgr pool add cxl --class cxl
again fabricmgr device add ld0 --pool cxl --address cxl:0x5001 --granularity 256M
killed agent 1 fabricmgr agent --host node0 &
wait_for 30 agent_has '"manager":"member"'
again fabricmgr region assign --host node0 --size 256M --idempotency-key one
wait_for 200 here
host say "attached; the agent was killed $(cat /tmp/agent.kills) times"
device_bytes zero /dev/dax0.0 0 268435456 || fail "the region is not empty"
device_bytes fill /dev/dax0.0 0 268435456
again fabricmgr region drain "$(region_id node0)"
wait_for 600 region_list_has '"items":\[\]'
host say "erased; agent and manager were killed $(cat /tmp/agent.kills) and $(cat /tmp/manager.kills) times"
[ "$(ls $CXL | grep -c -e region -e mem)" = 0 ] || fail "something is left: $(ls $CXL)"
again fabricmgr audit verify
again fabricmgr region assign --host node0 --size 256M --idempotency-key two
wait_for 200 here
device_bytes zero /dev/dax0.0 0 268435456 || fail "the next region is not empty"
cat /tmp/agent.kills >/results/agent
cat /tmp/manager.kills >/results/manager
touch /tmp/stop
"""


def check(results):
    kills = [int(results[0].text(name)) for name in ("agent", "manager")]
    assert kills[0] >= 10 and kills[1] >= 5, kills
    return [f"killed {kills[0]} times: the agent; {kills[1]} times: the manager"]
