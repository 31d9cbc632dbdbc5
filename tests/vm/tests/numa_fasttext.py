# SPDX-License-Identifier: Apache-2.0
"""fastText with a CXL device onlined as a NUMA node: the same model, its pages on that node as the statistics say."""

import re

from vmtest.topology import Device, Machine, Window

SECONDS = 300
MACHINES = [
    Machine(
        memory="640M",
        windows=[Window("1G", [Device("512M")])],
        modules=["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "kmem"],
    )
]

SCRIPT = """
wait_for 10 test -e $CXL/mem0
[ ! -e /sys/devices/system/node/node1 ] || fail "there is a second node already"
create_region decoder0.0 mem0 536870912
wait_for 20 node_has_memory 1
cat /sys/devices/system/node/has_memory
tidepool doctor --far auto | tee_to /results/doctor.txt
host say plain
train plain fasttext
host say tiered
watch_numa_maps fasttext &
train tiered tidepool run --dram 25% --far numa:1 --conf strict:true --stats /results/stats.json -- fasttext
host say found by itself
tidepool run --dram 25% --far auto --conf strict:true --stats /results/auto.json -- tidepool --version
"""

MIB = 1 << 20


def mappings_of_tier(numa_maps):
    """Of each mapping of the tier's file in a /proc/PID/numa_maps: bytes that are present, by node."""
    lines = [line for line in numa_maps.splitlines() if "memfd:tidepool-numa" in line]
    found = [{int(n): int(pages) * 4096 for n, pages in re.findall(r" N(\d+)=(\d+)", line)} for line in lines]
    return [mapping for mapping in found if mapping]


def check(results):
    stats, found = results[0].json("stats.json"), results[0].json("auto.json")
    tier = next(tier for tier in stats["tiers"] if tier["kind"] == "direct")
    assert results[0].text("plain.sum") == results[0].text("tiered.sum"), "another model"
    assert tier["name"] == "numa:1" and tier["used_bytes"] > 0, tier
    assert not stats["errors"], stats["errors"]
    assert found["tiers"][1]["name"] == "numa:1", found["tiers"]
    assert "no processors" in results[0].text("doctor.txt")
    mappings = mappings_of_tier(results[0].text("numa_maps"))
    live = results[0].json("live.json")
    used = next(tier["used_bytes"] for tier in live["tiers"] if tier["kind"] == "direct")
    assert mappings and all(set(mapping) == {1} for mapping in mappings), f"pages elsewhere: {mappings}"
    # One mapping is of the whole file; the others show parts of it where the program uses them. Between the two readings
    # the program went on.
    whole = max(mapping[1] for mapping in mappings)
    assert abs(whole - used) <= max(used // 8, 4 * MIB), f"numa_maps {whole}, statistics {used}"
    # A quarter of the local memory, not of that of both nodes.
    assert stats["dram_budget_bytes"] < 640 * MIB // 4, stats["dram_budget_bytes"]
    return [
        f"numa:1 holds {used // MIB} MiB by the statistics, {whole // MIB} MiB by numa_maps, all on node 1",
        f"demoted {stats['demoted_bytes'] // MIB} MiB, promoted {stats['promoted_bytes'] // MIB} MiB",
    ]
