# SPDX-License-Identifier: Apache-2.0
"""The machine that lends memory over RDMA loses its power: what was there is lost, and said to be, and never zeros."""

from vmtest import rdma
from vmtest.places import BUILD
from vmtest.topology import Machine

SECONDS = 150
SLOTS = 0.625  # it waits for what does not come
MACHINES = [Machine(memory="384M", cpus=1, link=True, modules=rdma.MODULES) for _ in range(2)]
PROGRAMS = {**rdma.PROGRAMS, "usr/bin/checked_pages": BUILD / "vm" / "checked_pages"}

SERVER = """
soft_roce
lend 96M
host meet up
wait
"""

CLIENT = """
soft_roce
host meet up
before=$(rdma_packets)
tidepool run --dram 24M --far remote:10.9.0.1:7000:transport:verbs --conf strict:true,compress:off,remote_timeout:5s \\
  -- checked_pages 64 /tmp/filled >/results/said.txt 2>/results/errors.txt 9>&- &
program=$!
wait_for 60 test -e /tmp/filled
usleep 2000000
kill -0 $program || fail "it ended too soon"
echo $(($(rdma_packets) - before)) >/results/packets
host kill 0
status=0
wait $program || status=$?
echo $status >/results/ended
"""

SCRIPTS = [SERVER, CLIENT]


def check(results):
    client = results[1]
    ended, said, errors = (client.text(name).strip() for name in ("ended", "said.txt", "errors.txt"))
    assert not said, f"bytes that were never written: {said}"
    assert ended == "135", f"ended with {ended}, not by SIGBUS: {errors}"
    assert "10.9.0.1:7000" in errors, f"nobody said what was lost: {errors}"
    assert int(client.text("packets")) > 1000, "pages did not go by RDMA"
    return [errors.splitlines()[-1]]
