# SPDX-License-Identifier: Apache-2.0
"""fastText in a quarter of the machine's memory and a CXL device in device-DAX mode: the same model, byte by byte."""

from vmtest.topology import Device, Machine, Window

SECONDS = 300
MACHINES = [
    Machine(
        memory="640M",
        windows=[Window("1G", [Device("512M")])],
        modules=["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax"],
    )
]

SCRIPT = r"""
wait_for 10 test -e $CXL/mem0
create_region decoder0.0 mem0 536870912
wait_for 10 test -e /sys/bus/dax/devices/dax0.0
use_as_device dax0.0
host say plain
train plain fasttext
host say tiered
train tiered tidepool run --dram 25% --far dax:/dev/dax0.0 --conf strict:true,sampling_cpu:4% \
  --stats /results/stats.json -- fasttext
"""


def check(results):
    stats = results[0].json("stats.json")
    tier = next(tier for tier in stats["tiers"] if tier["kind"] == "direct")
    assert results[0].text("plain.sum") == results[0].text("tiered.sum"), "another model"
    assert tier["name"].startswith("dax:") and tier["used_bytes"] > 0, tier
    assert not stats["errors"], stats["errors"]
    return [
        f"{tier['used_bytes'] >> 20} MiB on the device at the end; demoted {stats['demoted_bytes'] >> 20} MiB, "
        f"promoted {stats['promoted_bytes'] >> 20} MiB; of pages in use sampled, {stats['sampled_local_pages']} local, "
        f"{stats['sampled_far_pages']} far"
    ]
