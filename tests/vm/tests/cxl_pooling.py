# SPDX-License-Identifier: Apache-2.0
"""One logical device, two hosts: bound, attached, used by fastText, drained, detached, sanitized, bound to the other: zeros."""

from vmtest import form
from vmtest.topology import Device, Machine, Window

SECONDS = 600
ROUNDS = 3 if form.LONG else 1
HOSTS = {"node0": 0, "node1": 1, "manager": 0}
MODULES = ["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax"]


def machine():
    # The second slice of a pool of two.
    slice_of_pool = Device("256M", file="pool.mem", offset="256M", plugged=False, serial=0x5001)
    return Machine(memory="640M", cpus=1, link=True, windows=[Window("1G", [slice_of_pool])], modules=MODULES)


MACHINES = [machine(), machine()]

COMMON = f"""
. /lib/guest/fabric.sh
ROUNDS="{" ".join(str(number) for number in range(1, ROUNDS + 1))}"
""" + r"""
SIZE=268435456
# use_region: the region that stands ready here reads as zeros; leaves bytes in it.
use_region() {
  wait_for 60 here
  device_bytes zero /dev/dax0.0 0 $SIZE || fail "the region is not empty"
  device_bytes fill /dev/dax0.0 0 $SIZE
}
"""

MANAGER = COMMON + r"""
lab_manager 'cxl_switch = "/lib/guest/cxl-switch.sh"'
fabricmgr pool add cxl --class cxl
fabricmgr device add ld0 --pool cxl --address cxl:0x5001 --granularity 256M
lab_agent
host meet up

host say plain
train plain fasttext
host say with the device at node0
train pooled tidepool run --dram 25% --far fabric:256M --conf strict:true --stats /results/stats.json -- fasttext
freed "given back and erased"
nothing_here || fail "something is left: $(ls $CXL)"
host meet rounds
for round in $ROUNDS; do
  for node in node1 node0; do
    fabricmgr region assign --host $node --size 256M >/dev/null
    if [ $node = node0 ]; then use_region; else host meet "$node-$round"; fi
    fabricmgr region drain "$(region_id $node)" >/dev/null
    freed "round $round: $node had it, read zeros, wrote, and gave it back"
    nothing_here || fail "something is left: $(ls $CXL)"
  done
done
fabricmgr audit verify
fabricmgr device list
host meet down
"""

HOST = COMMON + r"""
host meet up
lab_host
lab_agent
host meet rounds
for round in $ROUNDS; do
  use_region
  host meet node1-$round
  wait_for 120 nothing_here
done
host meet down
nothing_here || fail "something is left: $(ls $CXL)"
"""

SCRIPTS = [MANAGER, HOST]


def check(results):
    stats = results[0].json("stats.json")
    tier = next(tier for tier in stats["tiers"] if tier["kind"] == "direct")
    assert results[0].text("plain.sum") == results[0].text("pooled.sum"), "another model"
    assert tier["used_bytes"] > 0 and not stats["errors"], stats
    return [f"fastText had {tier['used_bytes'] >> 20} MiB on the device; {2 * ROUNDS + 1} handovers"]
