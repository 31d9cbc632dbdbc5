# SPDX-License-Identifier: Apache-2.0
"""Two machines reach each other; each is given its slice of one pool by hot-plug and makes a region of it."""

from vmtest.topology import Device, Machine, Window

SECONDS = 120
MODULES = ["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax"]


def machine(offset):
    slice_of_pool = Device("256M", file="pool.mem", offset=offset, plugged=False)
    return Machine(memory="256M", cpus=1, link=True, windows=[Window("1G", [slice_of_pool])], modules=MODULES)


MACHINES = [machine("0M"), machine("256M")]

SCRIPT = """
host meet up
wait_for 20 ping -c 1 -W 1 "10.9.0.$((2 - MACHINE))"
[ ! -e $CXL/mem0 ] || fail "the device is there before it was added"
host plug 0
wait_for 20 test -e $CXL/mem0
wait_for 20 test -e $CXL/mem0/ram/size
cat $CXL/mem0/serial >/results/serial
wait_for 10 endpoint_decoder mem0
create_region decoder0.0 mem0 268435456
wait_for 10 test -e /sys/bus/dax/devices/dax0.0
host meet regions
"""


def check(results):
    serials = [result.text("serial").strip() for result in results]
    assert serials[0] != serials[1], serials
    return [f"serial numbers {', '.join(serials)}"]
