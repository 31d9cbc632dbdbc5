# SPDX-License-Identifier: Apache-2.0
"""fastText in one machine, its far pages in another's memory by RDMA in software: the same model as without."""

from vmtest import rdma
from vmtest.topology import Machine

SECONDS = 280
MACHINES = [Machine(memory="512M", cpus=1, link=True, modules=rdma.MODULES), Machine(memory="512M", cpus=1, link=True, modules=rdma.MODULES)]
PROGRAMS = rdma.PROGRAMS

SERVER = """
soft_roce
lend 192M
host meet up
wait
"""

CLIENT = """
soft_roce
host meet up
train plain fasttext
before=$(rdma_packets)
host say tiered
train tiered tidepool run --dram 25% --far remote:10.9.0.1:7000 --conf strict:true --stats /results/stats.json -- fasttext
echo $(($(rdma_packets) - before)) >/results/packets
host kill 0
"""

SCRIPTS = [SERVER, CLIENT]


def check(results):
    client = results[1]
    stats = client.json("stats.json")
    assert client.text("plain.sum") == client.text("tiered.sum"), "another model"
    assert not stats["errors"], stats["errors"]
    packets = int(client.text("packets"))
    tier = next(tier for tier in stats["tiers"] if tier["kind"] == "fetch")
    # A packet of RoCE carries 1 KiB on a link of 1500 bytes; what is read is asked for in one of ours.
    assert packets * 1024 >= tier["writes_bytes"] > 0, f"{packets} packets for {tier}: not by RDMA"
    return [f"written {tier['writes_bytes'] >> 20} MiB, read {tier['reads_bytes'] >> 20} MiB, {packets} packets of RDMA"]
