#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the fenced blocks marked ```sh run of Markdown files, so that what the documents tell people to type works.

    run_blocks.py --bin FOLDER [--limit SECONDS] FILE...

The blocks of one file run in order, in one shell (`bash -eu`), in an empty folder, with FOLDER first in PATH; pkg-config
finds what was built with it.
127.0.0.1:7777, which the documents use for a memory server, becomes a free port. Whatever a block leaves running
is ended. Exits 1 when a block fails, or when no file has any.
"""

import argparse
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile

FENCE = re.compile(r"^(`{3,})(.*)$")
EXAMPLE_ENDPOINT = "127.0.0.1:7777"


def blocks(text):
    """Yields (line number of the fence, info string, body) of every fenced block. Raises ValueError for one
    that does not end."""
    opened = None
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if opened is None and match:
            opened = (number, len(match.group(1)), match.group(2).strip(), [])
        elif opened and match and len(match.group(1)) >= opened[1] and not match.group(2).strip():
            yield opened[0], opened[2], "\n".join(opened[3]) + "\n"
            opened = None
        elif opened:
            opened[3].append(line)
    if opened:
        raise ValueError(f"line {opened[0]}: the block has no end")


def is_runnable(info):
    return info.split() == ["sh", "run"]


def script_of(path):
    """The runnable blocks as one shell script that names each block before it runs; empty if there are none."""
    parts = []
    for line, info, body in blocks(path.read_text()):
        if is_runnable(info):
            parts.append(f"printf '== %s:%s\\n' '{path.name}' {line}\n{body}")
    return "".join(parts)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run(script, folder, limit):
    """Returns (exit status, output); status None when it took too long. Leaves no process behind."""
    script = script.replace(EXAMPLE_ENDPOINT, f"127.0.0.1:{free_port()}")
    environment = {
        "PATH": f"{folder}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": os.environ.get("HOME", "/"),
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        "PKG_CONFIG_PATH": f"{folder.parent}/cmake",  # the libraries of the same build
        "PYTHONPATH": f"{folder.parent}/python",  # and its Python package
    }
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryFile("w+") as output:
        shell = subprocess.Popen(
            ["/bin/bash", "-eu", "-c", script],
            cwd=empty,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = shell.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        end_session(shell.pid)
        shell.wait()
        output.seek(0)
        return status, output.read()


def end_session(session):
    """Ends every process of a session, also those that made a process group of their own."""
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it ended meanwhile, or was never ours


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--limit", type=float, default=60)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    options = parser.parse_args(arguments)
    ran = failed = 0
    for path in options.files:
        script = script_of(path)
        if not script:
            continue
        ran += 1
        status, output = run(script, options.bin.resolve(), options.limit)
        if status == 0:
            print(f"ok    {path}")
            continue
        failed += 1
        reason = "took too long" if status is None else f"exit {status}"
        print(f"FAIL  {path}: {reason}; what it printed:\n{output}")
    if not ran:
        print("no block is marked ```sh run: nothing was tested")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
