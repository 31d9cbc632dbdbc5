#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An unchanged program that forks, over a memory server, with and without seal:on: the same output. With it the server
has nothing of what the program keeps there, and once its bytes are changed the program ends instead of using them. Of
two servers with the same pages, one may change what it has, and gets it again; both may not.

  sealed.py TIDEPOOL FABRICMGR
"""
import contextlib
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

MARK = b"the plain text of a page "
PROGRAM = f"""
import hashlib, os, sys
blocks = [bytearray(({MARK!r} + b"%08d " % i) * 2048) for i in range(1200)]
def told():
    whole = hashlib.sha256()
    for block in blocks: whole.update(block)
    return whole.hexdigest()
before = told()
child = os.fork()
if child == 0:
    for block in blocks[::2]: block[:6] = b"CHILD "
    changed = told()
    os._exit(0 if changed != before and changed == told() else 1)
for block in blocks[1::2]: block[:6] = b"PARENT"
ended = os.waitpid(child, 0)[1]
print("ready", ended, flush=True)
for line in sys.stdin: print(told(), flush=True)
"""


def mappings(pid):
    """The server's memory of regions."""
    with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
        for line in maps:
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if " rw" in line and last - first >= 64 << 20:
                yield first, last


def pieces(memory, pid):
    """Where it is not zeros, 64 KiB at a time."""
    for first, last in mappings(pid):
        for at in range(first, last, 1 << 16):
            memory.seek(at)
            try:
                piece = memory.read(min(1 << 16, last - at))
            except OSError:
                continue
            if piece.strip(b"\0"):
                yield at, piece


def has_plain_text(pid):
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return any(MARK in piece for _, piece in pieces(memory, pid))


def flip_bits(pid):
    """One in each 2 KiB, so at least one of each page."""
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for at, piece in pieces(memory, pid):
            for byte in range(0, len(piece), 2048):
                memory.seek(at + byte)
                memory.write(bytes([piece[byte] ^ 16]))


@contextlib.contextmanager
def memory_server(fabricmgr):
    """Its process and address."""
    with subprocess.Popen([fabricmgr, "memserver", "--listen", "127.0.0.1:0", "--size", "1G"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as server:
        try:
            address = None
            while not address:
                line = server.stdout.readline()
                assert line, "no memory server"
                address = re.search(rb"127\.0\.0\.1:[1-9]\d*", line)
            yield server, address.group().decode()
        finally:
            server.kill()


def copies(tidepool, pid):
    told = subprocess.run([tidepool, "stat", str(pid), "--json"], capture_output=True, check=True)
    return next(tier["copies"] for tier in json.loads(told.stdout)["tiers"] if "copies" in tier)


def await_mended(tidepool, program, server):
    """Has the program read all it has until pages were written to the server again. A full check may take some."""
    while not copies(tidepool, program.pid)[server].get("mended_pages"):
        program.stdin.write(b"\n")
        program.stdin.flush()
        assert program.stdout.readline(), program.communicate()


def run(tidepool, servers, far, seal, before_the_end=None, after=None):
    """Status, the last line of output, and what was said."""
    command = [tidepool, "run", "--dram", "24M", "--far", f"{far}:256M", "--conf", f"seal:{seal}",
               "--conf", "compress:off", "--conf", "strict:true", "--", sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        ready = program.stdout.readline()
        assert ready == b"ready 0\n", (ready, program.communicate())
        for server in servers:
            assert has_plain_text(server.pid) == (seal == "off"), f"seal:{seal}"
        if before_the_end:
            before_the_end()
        if after:
            after(program)
        output, errors = program.communicate(b"\n")
        return program.returncode, output, errors.decode()


def refused(tidepool, far):
    done = subprocess.run([tidepool, "run", "--dram", "24M", "--far", far, "--conf", "seal:on", "--", "true"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 125 and "cannot be sealed" in done.stderr, done


def without_the_library(tidepool, address):
    """An installation that lacks it says so and runs nothing in the clear."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("bin/tidepool", "lib/libtidepool-preload.so"):
            copy = pathlib.Path(folder, part)
            copy.parent.mkdir()
            shutil.copy2(pathlib.Path(tidepool).resolve().parent.parent / part, copy)
        command = [f"{folder}/bin/tidepool", "run", "--dram", "24M", "--far", f"remote:{address}:64M", "--conf",
                   "seal:on", "--conf", "strict:true", "--", sys.executable, "-c", "print('ran')"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and done.stdout == "", done
        assert "pages cannot be sealed: libtidepool-seal.so is not installed" in done.stderr, done


def on_one(tidepool, server, address):
    sealed = run(tidepool, [server], f"remote:{address}", "on")
    assert sealed[0] == 0, sealed
    changed = run(tidepool, [server], f"remote:{address}", "on", lambda: flip_bits(server.pid))
    assert changed[:2] == (-signal.SIGBUS, b""), changed
    assert f"remote:{address} does not verify" in changed[2], changed
    return sealed


def on_two(tidepool, servers, addresses, expected):
    far = "mirror:" + "+".join(addresses)
    changed = run(tidepool, servers, far, "on", lambda: flip_bits(servers[1].pid),
                  lambda program: await_mended(tidepool, program, 1))
    assert changed[:2] == expected[:2], changed
    assert f"the memory server {addresses[1]} has given what does not verify (" in changed[2], changed
    assert f"the memory server {addresses[1]} has got pages again that did not verify there (" in changed[2], changed
    assert addresses[0] not in changed[2], changed
    changed = run(tidepool, servers, far, "on", lambda: [flip_bits(server.pid) for server in servers])
    assert changed[:2] == (-signal.SIGBUS, b""), changed
    assert f"{far} does not verify" in changed[2], changed


def main():
    tidepool, fabricmgr = sys.argv[1:]
    with memory_server(fabricmgr) as (first, address), memory_server(fabricmgr) as (second, other):
        sealed = on_one(tidepool, first, address)
        on_two(tidepool, [first, second], [address, other], sealed)
        # Last: what it leaves on the server takes a moment to go.
        assert run(tidepool, [first], f"remote:{address}", "off") == sealed
        refused(tidepool, "fabric")
        without_the_library(tidepool, address)
    return 0


sys.exit(main())
