# SPDX-License-Identifier: Apache-2.0
"""Hot granules on a CXL device in device-DAX mode are promoted: of the pages in use, the share that is local rises."""

import json

from vmtest.topology import Device, Machine, Window

SECONDS = 240
MACHINES = [
    Machine(
        memory="640M",
        windows=[Window("1G", [Device("256M")])],
        modules=["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax"],
    )
]

# Little memory, since copying it takes long there: of 24 MiB the last 4 are used, which the device has when all
# is filled. An emulated processor is slow to look: it gets a larger share for that than the 1 % that is usual.
SCRIPT = r"""
wait_for 10 endpoint_decoder mem0
fabricmgr cxl create mem0 --mode device
tidepool run --dram 12M --far dax:/dev/dax0.0 --conf strict:true,sampling_cpu:10% --stats /results/stats.json -- \
  hot_set 25165824 4194304 60 >/results/updates &
run=$!
series_of hot_set
wait $run
"""

MIB = 1 << 20


def share(first, last):
    """Of the pages found in use between two readings, how many were local; None if nothing was found."""
    local = last["sampled_local_pages"] - first["sampled_local_pages"]
    far = last["sampled_far_pages"] - first["sampled_far_pages"]
    return local / (local + far) if local + far else None


def check(results):
    stats = results[0].json("stats.json")
    assert results[0].json("updates")["verified"], "updates were lost"
    assert not stats["errors"], stats["errors"]
    assert stats["tiers"][1]["name"].startswith("dax:"), stats["tiers"]
    series = [json.loads(line) for line in results[0].text("series").splitlines()]
    shares = [s for s in map(share, series, series[1:]) if s is not None]
    assert len(shares) >= 4, f"too few looks: {shares}"
    quarter = max(1, len(shares) // 4)
    before, after = sum(shares[:quarter]) / quarter, sum(shares[-quarter:]) / quarter
    assert stats["promoted_bytes"] > 0 and after > before, f"the local share did not rise: {shares}"
    return [
        f"of the pages in use {before:.0%} were local in the first quarter of the looks, {after:.0%} in the last",
        f"promoted {stats['promoted_bytes'] / MIB:.0f} MiB, demoted {stats['demoted_bytes'] / MIB:.0f} MiB",
    ]
