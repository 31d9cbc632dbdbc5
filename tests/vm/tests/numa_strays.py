# SPDX-License-Identifier: Apache-2.0
"""What the kernel's own demotion takes to the far node, while it counts as local, is moved back, page by page."""

from vmtest.topology import Machine, Node

SECONDS = 180
# The kernel demotes to nodes that its firmware says are worse.
NODES = [Node("384M", cpus="0-1", latency=90, bandwidth="100G"), Node("256M", latency=250, bandwidth="20G")]
MACHINES = [Machine(memory="640M", nodes=NODES)]

# A group of processes that is told to give memory back demotes what it does not use.
SCRIPT = """
mount -t cgroup2 none /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/demoted
echo true >/sys/kernel/mm/numa/demotion_enabled
tidepool doctor --far numa:1 --json >/results/doctor.json
(
  echo 0 >/sys/fs/cgroup/demoted/cgroup.procs
  exec tidepool run --dram 64M --far numa:1 --conf strict:true --stats /results/stats.json -- \
    gups --size 134217728 --threads 1 --seconds 30 --verify >/results/gups.json 2>/results/said.txt
) &
wait_for 60 pidof gups >/dev/null
while pidof gups >/dev/null; do
  echo 16M >/sys/fs/cgroup/demoted/memory.reclaim || true
  sleep 3
done
wait
grep demote /proc/vmstat
"""


def check(results):
    stats = results[0].json("stats.json")
    assert results[0].json("gups.json")["verified"], "updates were lost"
    assert not stats["errors"], stats["errors"]
    said = results[0].text("said.txt")
    assert said.count("the kernel moves pages between nodes, too") == 1, said
    checks = {check["name"]: check for check in results[0].json("doctor.json")["checks"]}
    assert checks["kernel-tiering"]["status"] == "warn", checks["kernel-tiering"]
    assert "demotion_enabled" in checks["kernel-tiering"]["mend"]
    assert stats["strayed_pages"] > 0, "the kernel demoted nothing: nothing was tested"
    assert stats["returned_pages"] > 0, stats
    return [f"{stats['strayed_pages']} local pages found on the far node, {stats['returned_pages']} moved back"]
