# SPDX-License-Identifier: Apache-2.0
"""`fabricmgr cxl`: region, device mode, system RAM, drain, destroy, sanitize; killed after writes; who comes next reads zeros."""

from vmtest import form
from vmtest.topology import Device, Machine, Window

SECONDS = 400
SLOTS = 0.625  # it waits for devices
MACHINES = [
    Machine(
        windows=[Window("1G", [Device("256M")])],
        modules=["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax", "kmem"],
    )
]

SCRIPT = r"""
SIZE=268435456
refused() { "$@" 2>/tmp/refusal && fail "$* was not refused"; cat /tmp/refusal; }

wait_for 10 endpoint_decoder mem0
fabricmgr cxl list
[ "$(cxl_state mem0)" = free ] || fail "the device is not free at first"
policy=$(cat /sys/devices/system/memory/auto_online_blocks)

host say each step, and again
for step in "create mem0" "use mem0 --mode system-ram" "drain mem0" "use mem0 --mode device" "destroy mem0"; do
  fabricmgr cxl $step
  fabricmgr cxl $step
done
[ "$(cxl_state mem0)" = free ] || fail "the device is not free after all steps"

host say what is in use is left alone
fabricmgr cxl create 0x101 --mode system-ram
[ "$(cxl_state mem0)" = system-ram ] || fail "the memory is not online"
for block in 222 223; do
  grep -q Movable /sys/devices/system/memory/memory$block/valid_zones || fail "block $block is not movable"
done
refused fabricmgr cxl use mem0
refused fabricmgr cxl destroy mem0
refused fabricmgr cxl sanitize mem0
[ "$(cxl_state mem0)" = system-ram ] || fail "a refusal changed something"

host say drain what is used
mkdir /tmp/far
mount -t tmpfs -o mpol=bind:1,size=64M far /tmp/far
dd if=/dev/urandom of=/tmp/far/bytes bs=1M count=24 2>/dev/null
before=$(sha256sum /tmp/far/bytes)
grep -o 'MemUsed.*' /sys/devices/system/node/node1/meminfo
fabricmgr cxl drain mem0 2>&1
[ "$(cxl_state mem0)" = offline ] || fail "the memory is not offline"
[ "$(sha256sum /tmp/far/bytes)" = "$before" ] || fail "a drain changed bytes"
umount /tmp/far
fabricmgr cxl use mem0

host say erase
device_bytes fill /dev/dax0.0 0 $SIZE
device_bytes hold /dev/dax0.0 >/tmp/held &
holder=$!
wait_for 10 test -s /tmp/held
refused fabricmgr cxl destroy mem0
kill $holder
wait $holder || true
fabricmgr cxl destroy mem0
fabricmgr cxl create mem0
device_bytes zero /dev/dax0.0 0 $SIZE && fail "a new region shows nothing of the old one: this test shows nothing"
fabricmgr cxl destroy mem0
fabricmgr cxl sanitize mem0 2>&1
fabricmgr cxl create mem0
device_bytes zero /dev/dax0.0 0 $SIZE || fail "the next one reads what was erased"
fabricmgr cxl list --json >/results/list.json

host say health
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
echo 0x1000 >/sys/kernel/debug/cxl/mem0/inject_poison
fabricmgr cxl health mem0
fabricmgr cxl health mem0 --json >/results/health.json
echo 0x1000 >/sys/kernel/debug/cxl/mem0/clear_poison
fabricmgr cxl events --seconds 30 >/results/events.json &
watcher=$!
wait_for 10 grep -qxs 1 "/sys/kernel/tracing/instances/tidepool-$watcher/events/cxl/enable"
host event 0 0x2000
wait_for 20 test -s /results/events.json
cat /results/events.json
kill $watcher
wait $watcher || true

host say killed
free="fabricmgr cxl drain mem0 && fabricmgr cxl destroy mem0"
ram="$free && fabricmgr cxl create mem0 --mode system-ram"
killed_at_every_write device "$free" fabricmgr cxl create mem0
killed_at_every_write system-ram "$free" fabricmgr cxl create mem0 --mode system-ram
killed_at_every_write system-ram "fabricmgr cxl drain mem0; fabricmgr cxl use mem0" fabricmgr cxl use mem0 --mode system-ram
killed_at_every_write offline "$ram" fabricmgr cxl drain mem0
killed_at_every_write device "$ram && fabricmgr cxl drain mem0" fabricmgr cxl use mem0
killed_at_every_write free "fabricmgr cxl create mem0" fabricmgr cxl destroy mem0
killed_at_every_write free "$free" fabricmgr cxl sanitize mem0
[ "$(cat /sys/devices/system/memory/auto_online_blocks)" = "$policy" ] || fail "a setting was not put back"
[ "$(ls $CXL | grep -c region)" = 0 ] || fail "regions are left: $(ls $CXL)"
"""
SCRIPT = form.writes() + SCRIPT


def check(results):
    region = results[0].json("list.json")["regions"][0]
    poison = results[0].json("health.json")["poison"]
    assert poison == [{"address": 0x1000, "length_bytes": 64, "source": "Injected", "region": "region0"}], poison
    event = results[0].json("events.json")
    assert event["event"] == "cxl_general_media" and event["region"] == "region0", event
    assert region["size_bytes"] == 256 << 20 and region["dax"][0]["driver"] == "device_dax", region
