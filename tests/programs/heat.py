#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""heat.py BIN direct|remote: a program uses a tenth of its memory all the time and the rest now and then; what
`tidepool heat` says of that tenth is hotter than the rest, and where all of it lies. BIN: `tidepool`, `fabricmgr`."""

import contextlib
import json
import pathlib
import re
import subprocess
import sys
import time

SIZE = 96 << 20
HOT = SIZE // 10
PAGE = 4096
# Writes a byte of each page of the hot tenth, then one anywhere, round by round.
PROGRAM = f"""
import ctypes
memory = bytearray({SIZE})
for at in range(0, {SIZE}, {PAGE}): memory[at:at + 8] = at.to_bytes(8, "little")
memory[0:8] = b"not zero"
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
hot = {SIZE} // 2
print(start, hot, flush=True)
number, other = 0, 0
while True:
    for at in range(hot, hot + {HOT}, {PAGE}): memory[at] = number & 255
    number += 1
    other = (other + 977 * {PAGE}) % {SIZE}
    memory[other + 9] = number & 255
"""


@contextlib.contextmanager
def far(tools, way):
    if way == "direct":
        yield f"cxl:{2 * SIZE}"
        return
    command = [tools / "fabricmgr", "memserver", "--listen", "127.0.0.1:0", "--size", "256M"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r"127\.0\.0\.1:\d+", server.stdout.readline()).group()
            yield f"remote:{address}:200M"
        finally:
            server.kill()


def look(tools, pid):
    done = subprocess.run([tools / "tidepool", "heat", str(pid), "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def mean_heat(heat, first, last):
    """Of the ranges that lie within; None while next to nothing is known of them."""
    ranges = [r for r in heat["ranges"] if first <= r["start"] and r["start"] + heat["range_bytes"] <= last]
    known = sum(r["known_bytes"] for r in ranges)
    if known < (last - first) // 2:
        return None
    return sum((r["heat"] or 0) * r["known_bytes"] for r in ranges) / known


def shows(heat, start, hot):
    inside = mean_heat(heat, start + hot, start + hot + HOT)
    outside = mean_heat(heat, start + hot + HOT, start + SIZE)
    return inside is not None and outside is not None and inside > 2 * outside and inside > 1


def check(heat, way):
    total = {key: sum(r[key] for r in heat["ranges"]) for key in heat["ranges"][0] if key.endswith("_bytes")}
    cold = total["direct_bytes"] if way == "direct" else total["fetch_bytes"] + total["compressed_bytes"]
    assert cold > SIZE // 4, total
    assert total["local_bytes"] > 0, total
    assert total["hot_bytes"] >= total["hot_far_bytes"], total
    assert 0 <= heat["sampling_cpu_ratio"] < 0.5 and 0 < heat["map_cpu_ratio"] < 0.5, heat
    assert all(r["newest_seconds"] <= r["oldest_seconds"] for r in heat["ranges"] if r["heat"] is not None)


def main(tools, way):
    tools = pathlib.Path(tools)
    with far(tools, way) as tier:
        command = [tools / "tidepool", "run", "--dram", "32M", "--conf", "start:now", "--far", tier, "--",
                   sys.executable, "-c", PROGRAM]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            try:
                start, hot = map(int, program.stdout.readline().split())
                deadline = time.monotonic() + 240
                while not shows(heat := look(tools, program.pid), start, hot):
                    assert program.poll() is None, "the program ended"
                    assert time.monotonic() < deadline, heat
                    time.sleep(0.5)
                check(heat, way)
                drawn = subprocess.run([tools / "tidepool", "heat", str(program.pid)], capture_output=True, text=True,
                                       check=True).stdout
                assert "hot: " in drawn and "cost: sampling" in drawn, drawn
            finally:
                program.kill()
    return 0


sys.exit(main(*sys.argv[1:]))
