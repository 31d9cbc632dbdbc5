# SPDX-License-Identifier: Apache-2.0
"""Hot pages on a CXL device onlined as a NUMA node are promoted: the local share of pages in use rises."""

import json

from vmtest.topology import Device, Machine, Window

SECONDS = 240
MACHINES = [
    Machine(
        memory="512M",
        windows=[Window("1G", [Device("256M")])],
        modules=["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "kmem"],
    )
]

# A tenth of the pages, all over the array, gets nine tenths of the updates; --verify: none is lost.
SCRIPT = """
wait_for 10 test -e $CXL/mem0
create_region decoder0.0 mem0 268435456
wait_for 20 node_has_memory 1
tidepool run --dram 16M --far numa:1 --conf strict:true --stats /results/stats.json -- \
  gups --size 33554432 --threads 1 --seconds 80 --verify >/results/gups.json &
series_of gups
wait
cat /results/stats.json
"""

MIB = 1 << 20


def share(first, last):
    """Of the pages found in use between two readings, how many were local."""
    local = last["sampled_local_pages"] - first["sampled_local_pages"]
    far = last["sampled_far_pages"] - first["sampled_far_pages"]
    return local / (local + far) if local + far else None


def check(results):
    series = [json.loads(line) for line in results[0].text("series").splitlines()]
    stats = results[0].json("stats.json")
    assert not stats["errors"], stats["errors"]
    # The hot set moves half-way: what is promoted for the first half is looked at alone.
    start = series[0]["elapsed_seconds"]
    half = [s for s in series if s["elapsed_seconds"] < start + 40]
    third = max(1, len(half) // 3)
    before, after = share(half[0], half[third]), share(half[-1 - third], half[-1])
    return [
        f"pages in use that are local: {before} in the first third, {after} in the last",
        f"promoted {stats['promoted_bytes'] / MIB:.1f} MiB, demoted {stats['demoted_bytes'] / MIB:.1f} MiB",
        f"{[share(a, b) for a, b in zip(series, series[1:])]}",
    ]
