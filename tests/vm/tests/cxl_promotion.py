# SPDX-License-Identifier: Apache-2.0
"""Hot memory on a CXL device is promoted, from device-DAX granule by granule, from a node page by page: of the pages in use,
the share that is local rises."""

import json

from vmtest.topology import Device, Machine, Window

SECONDS = 400
MACHINES = [
    Machine(
        memory="640M",
        windows=[Window("1G", [Device("256M")])],
        modules=["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax", "kmem"],
    )
]

# Little memory, since copying it takes long there: of 24 MiB the last are used, 4 MiB in whole granules, 64 single pages,
# which the device has when all is filled. An emulated processor is slow to look: it gets a larger share for that than the
# 1 % that is usual.
SCRIPT = r"""
promoted_from() {
  local name=$1 far=$2 hot=$3 run
  tidepool run --dram 12M --far "$far" --conf strict:true,sampling_cpu:10% --stats "/results/$name.stats" -- \
    hot_set 25165824 "$hot" 60 >"/results/$name.updates" &
  run=$!
  series_of hot_set
  wait $run
  mv /results/series "/results/$name.series"
}
wait_for 10 endpoint_decoder mem0
fabricmgr cxl create mem0 --mode device
promoted_from device dax:/dev/dax0.0 4194304
fabricmgr cxl use mem0 --mode system-ram
promoted_from node numa:1 262144
"""

MIB = 1 << 20


def share(first, last):
    """Of the pages found in use between two readings, how many were local; None if nothing was found."""
    local = last["sampled_local_pages"] - first["sampled_local_pages"]
    far = last["sampled_far_pages"] - first["sampled_far_pages"]
    return local / (local + far) if local + far else None


def check_run(result, name, tier):
    stats = result.json(f"{name}.stats")
    assert result.json(f"{name}.updates")["verified"], "updates were lost"
    assert not stats["errors"], stats["errors"]
    assert stats["tiers"][1]["name"].startswith(tier), stats["tiers"]
    series = [json.loads(line) for line in result.text(f"{name}.series").splitlines()]
    shares = [s for s in map(share, series, series[1:]) if s is not None]
    assert len(shares) >= 4, f"too few looks: {shares}"
    quarter = max(1, len(shares) // 4)
    before, after = sum(shares[:quarter]) / quarter, sum(shares[-quarter:]) / quarter
    assert stats["promoted_bytes"] > 0 and after > before, f"the local share did not rise: {shares}"
    return (
        f"{name}: of the pages in use {before:.0%} were local in the first quarter of the looks, {after:.0%} in the last; "
        f"promoted {stats['promoted_bytes'] / MIB:.2f} MiB, demoted {stats['demoted_bytes'] / MIB:.2f} MiB"
    )


def check(results):
    return [check_run(results[0], "device", "dax:"), check_run(results[0], "node", "numa:1")]
