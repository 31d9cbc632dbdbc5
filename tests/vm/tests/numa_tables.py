# SPDX-License-Identifier: Apache-2.0
"""Embedding tables on a NUMA node without processors: rows on that node by the kernel's word, and bit for bit the same."""

import re

from vmtest.topology import Machine, Node

SECONDS = 240
MACHINES = [Machine(memory="512M", cpus=2, nodes=[Node("352M", cpus="0-1"), Node("160M")], distances={(0, 1): 20})]

SCRIPT = """
tidepool doctor --far numa:1
host say numa:1
table-on-tier numa:1 >/results/table.json 2>/results/numa_maps || { cat /results/numa_maps; fail "the table in numa:1"; }
cat /results/table.json /results/numa_maps
host say auto
table-on-tier auto >/results/auto.json 2>/dev/null || fail "the table in auto"
host say numa:7
table-on-tier numa:7 2>/results/none.txt && fail "there is no such node"
cat /results/none.txt
"""

MIB = 1 << 20


def check(results):
    table, found = results[0].json("table.json"), results[0].json("auto.json")
    assert table["same"] and found["same"], "other numbers than in local memory"
    assert table["in_place"] > 0, "no row was read in place"
    for one in (table, found):
        assert set(one["nodes"]) == {"1"}, f"rows elsewhere: {one['nodes']}"
        assert one["nodes"]["1"] >= one["rows_bytes"], one
    by_maps = [dict(re.findall(r" N(\d+)=(\d+)", line)) for line in results[0].text("numa_maps").splitlines()]
    assert by_maps and all(set(nodes) <= {"1"} for nodes in by_maps), by_maps
    pages = sum(int(nodes.get("1", 0)) for nodes in by_maps) * 4096
    assert "no such node" in results[0].text("none.txt")
    return [
        f"{table['rows_bytes'] // MIB} MiB of rows: {table['nodes']['1'] // MIB} MiB on node 1 by move_pages, "
        f"{pages // MIB} MiB by numa_maps, none elsewhere; {table['in_place']} look-ups in place, {table['hits']} in DRAM"
    ]
