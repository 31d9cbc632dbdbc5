# SPDX-License-Identifier: Apache-2.0
"""One shared device, two heads: two regions for two hosts that do not overlap; one is erased, the other keeps its bytes."""

from vmtest.topology import Device, Machine, Window

SECONDS = 240
MODULES = ["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax"]


def machine():
    shared = Device("256M", file="shared.mem", serial=0x5001)
    return Machine(memory="384M", cpus=1, link=True, windows=[Window("1G", [shared])], modules=MODULES)


MACHINES = [machine(), machine()]

MANAGER = r"""
. /lib/guest/fabric.sh
SIZE=8388608
lab_manager
fabricmgr pool add cxl --class cxl
wait_for 10 endpoint_decoder mem0
fabricmgr device add shared --pool cxl --address cxl:0x5001 --heads 2
lab_agent
host meet up
host meet joined
for node in node0 node1; do
  fabricmgr region assign --host $node --size 8M >/dev/null
  fabricmgr region show "$(region_id $node)" --json >/results/$node.json
done
wait_for 60 here
mine=$(sed 's/.*"offset_bytes":\([0-9]*\).*/\1/' /results/node0.json)
theirs=$(sed 's/.*"offset_bytes":\([0-9]*\).*/\1/' /results/node1.json)
device_bytes zero /dev/dax0.0 $mine $SIZE
device_bytes fill /dev/dax0.0 $mine $SIZE
device_bytes zero /dev/dax0.0 $theirs $SIZE || fail "one host wrote into the region of the other"
echo $theirs >pki/offset
host meet filled-0
host meet filled-1
device_bytes zero /dev/dax0.0 $theirs $SIZE && fail "the other head's stores are not to be seen"
fabricmgr region drain "$(region_id node0)" >/dev/null
gone() { ! region_list_has '"host":"node0"'; }
wait_for 120 gone
fabricmgr cxl create mem0
device_bytes zero /dev/dax0.0 $mine $SIZE || fail "what was given back is not erased"
device_bytes zero /dev/dax0.0 $theirs $SIZE && fail "the other's bytes were erased, too"
fabricmgr audit verify
host meet done
"""

HOST = r"""
. /lib/guest/fabric.sh
SIZE=8388608
wait_for 10 endpoint_decoder mem0
host meet up
lab_host
lab_agent
host meet joined
wait_for 60 here
host meet filled-0
mine=$(wget -q -O - http://10.9.0.1:8000/offset)
device_bytes zero /dev/dax0.0 $mine $SIZE || fail "the region is not empty"
device_bytes fill /dev/dax0.0 $mine $SIZE
host meet filled-1
host meet done
device_bytes zero /dev/dax0.0 $mine $SIZE && fail "this host's bytes are gone"
fabricmgr agent --status | grep ready
"""

SCRIPTS = [MANAGER, HOST]


def check(results):
    extents = [results[0].json(f"{node}.json")["extents"] for node in ("node0", "node1")]
    taken = [(one["offset_bytes"], one["offset_bytes"] + one["length_bytes"]) for all in extents for one in all]
    (begin, end), (other, last) = sorted(taken)
    assert begin < end <= other < last, taken
    return [f"regions at {begin} to {end} and {other} to {last} of one device"]
