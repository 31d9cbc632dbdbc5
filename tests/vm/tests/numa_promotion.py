# SPDX-License-Identifier: Apache-2.0
"""Hot pages on a NUMA node without processors are promoted: of the pages in use, the share that is local rises."""

import json

from vmtest.topology import Machine, Node

SECONDS = 240
SLOTS = 1.5  # the program, and who looks and moves: beside others, too few looks come of the time that is given
# Ordinary memory, so that moving a page costs what it does on a real machine: that of QEMU's CXL devices is a
# hundred times slower. The firmware says that the second node is worse.
NODES = [Node("384M", cpus="0-1", latency=90, bandwidth="100G"), Node("256M", latency=250, bandwidth="20G")]
MACHINES = [Machine(memory="640M", nodes=NODES, distances={(0, 1): 24})]

# A tenth of the pages, all over the array, gets nine tenths of the updates, after half of the time another tenth;
# --verify: no update is lost. An emulated processor is slow to look: it gets a larger share for that than the 1 % that is
# usual.
SCRIPT = """
tidepool doctor --far auto --json >/results/doctor.json
tidepool doctor --far auto
tidepool run --dram 32M --far auto --conf strict:true,sampling_cpu:4% --stats /results/stats.json -- \
  gups --size 134217728 --threads 1 --seconds 80 --verify >/results/gups.json &
series_of gups
wait
"""

MIB = 1 << 20


def share(first, last):
    """Of the pages found in use between two readings, how many were local; None if nothing was found."""
    local = last["sampled_local_pages"] - first["sampled_local_pages"]
    far = last["sampled_far_pages"] - first["sampled_far_pages"]
    return local / (local + far) if local + far else None


def check_topology(topology):
    assert topology["source"] == "hwloc" and topology["this_machine"], topology
    local, far = topology["nodes"]
    assert (local["node"], local["role"], local["read_latency_ns"]) == (0, "local", 90), local
    assert (far["node"], far["role"], far["processors"], far["distance"]) == (1, "far", 0, 24), far
    assert (far["read_latency_ns"], far["read_bandwidth_bytes_per_second"] >> 30) == (250, 20), far


def check(results):
    check_topology(results[0].json("doctor.json")["topology"])
    stats = results[0].json("stats.json")
    assert results[0].json("gups.json")["verified"], "updates were lost"
    assert not stats["errors"], stats["errors"]
    assert stats["tiers"][1]["name"] == "numa:1", "auto took another tier"
    series = [json.loads(line) for line in results[0].text("series").splitlines()]
    shares = [s for s in map(share, series, series[1:]) if s is not None]
    assert len(shares) >= 4, f"too few looks: {shares}"
    quarter = max(1, len(shares) // 4)
    before, after = sum(shares[:quarter]) / quarter, sum(shares[-quarter:]) / quarter
    assert stats["promoted_bytes"] > 0 and after > before, f"the local share did not rise: {shares}"
    return [
        f"of the pages in use {before:.0%} were local in the first quarter of the looks, {after:.0%} in the last",
        f"promoted {stats['promoted_bytes'] / MIB:.1f} MiB, demoted {stats['demoted_bytes'] / MIB:.1f} MiB, "
        f"{stats['wasted_migrations']} in vain",
    ]
