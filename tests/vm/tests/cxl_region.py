# SPDX-License-Identifier: Apache-2.0
"""A type-3 device is found, a region made of it through sysfs, and that is /dev/dax0.0."""

from vmtest.topology import Device, Machine, Window

SECONDS = 120
MACHINES = [
    Machine(
        windows=[Window("1G", [Device("256M")])],
        modules=["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax"],
    )
]

SCRIPT = """
wait_for 10 test -e $CXL/mem0
ls $CXL
[ "$(cat $CXL/mem0/ram/size)" = 0x10000000 ] || fail "the device is of another size"
region=$(create_region decoder0.0 mem0 268435456)
wait_for 10 test -e /sys/bus/dax/devices/dax0.0
use_as_device dax0.0
test -c /dev/dax0.0
cat $CXL/$region/size /sys/bus/dax/devices/dax0.0/size /sys/bus/dax/devices/dax0.0/target_node
cat /sys/bus/dax/devices/dax0.0/size >/results/size
"""


def check(results):
    assert int(results[0].text("size")) == 256 << 20
