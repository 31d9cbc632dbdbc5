# SPDX-License-Identifier: Apache-2.0
"""The transport's own tests over RDMA by software: one machine, its memory server at its own address."""

from vmtest import rdma
from vmtest.topology import Machine

SECONDS = 240
MACHINES = [Machine(memory="512M", cpus=cpus, link=True, modules=rdma.MODULES) for cpus in (2,)]
TESTS = ["transport_lane_test"]
PROGRAMS = {**rdma.PROGRAMS}
for name in TESTS:
    PROGRAMS.update(rdma.built(name))

SCRIPT = """
soft_roce
export TIDEPOOL_TEST_RDMA=10.9.0.1
timeout 200 transport_lane_test --gtest_filter='*verbs*'
echo packets $(rdma_packets)
"""
