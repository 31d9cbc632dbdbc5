#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mirror_repair.py BIN: sort(1) with most of its memory on two memory servers. One is killed, a second copy is
made on a spare server (of sealed pages, too), or on the lost one once it is there again with nothing in it; then the
other of the two is killed: the same bytes, exit status 0. BIN holds `tidepool` and `fabricmgr`."""

import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from mirror import Server, Sorting, make_input


def copies(tools, sorting):
    """What the program's statistics say of its servers, in the order in which they are named."""
    told = subprocess.run([tools / "tidepool", "stat", str(sorting.process.pid), "--json"], stdout=subprocess.PIPE,
                          check=True)
    return json.loads(told.stdout)["tiers"][1]["copies"]


def await_states(tools, sorting, wanted):
    deadline = time.monotonic() + 240
    while True:
        states = [copy["state"] for copy in copies(tools, sorting)]
        if states == wanted:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"the servers are {states} and not {wanted}")
        time.sleep(0.02)


def run(tools, folder, data, spare, seal):
    """Has all of the input sorted but for the last byte while servers come and go. What finish() returns."""
    with (
        Server(tools, folder) as first,
        Server(tools, folder) as second,
        Server(tools, folder) as third,
        contextlib.ExitStack() as again,
    ):
        sorting = Sorting(tools, folder, (first, second, third) if spare else (first, second), seal)
        sorting.go(data, 0, len(data) - 1)
        await_states(tools, sorting, ["live", "live", "spare"] if spare else ["live", "live"])
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        if not spare:
            await_states(tools, sorting, ["lost", "live"])
            again.enter_context(Server(tools, folder, first.address))
        await_states(tools, sorting, ["lost", "live", "live"] if spare else ["live", "live"])
        second.process.send_signal(signal.SIGKILL)
        sorting.go(data, len(data) - 1, 2 * len(data))
        return sorting.out, *sorting.finish()


def main(tools):
    with tempfile.TemporaryDirectory(prefix="mirror-repair-") as name:
        folder, tools = pathlib.Path(name), pathlib.Path(tools)
        lines = make_input()
        data, wanted = b"".join(lines), b"".join(sorted(lines))
        for spare, seal in ((True, "off"), (False, "off"), (True, "on")):
            got, status, said, told = run(tools, folder, data, spare, seal)
            if status != 0 or got != wanted:
                kind = "right" if got == wanted else "wrong"
                return f"spare {spare}, seal {seal}: status {status}, {kind} bytes: {said}"
            for line in ("is lost (", "a second copy of all pages is being made on", "all pages are on two"):
                if line not in said:
                    return f"spare {spare}, seal {seal}: nothing is said of '{line}': {said}"
            print(f"spare {spare}, seal {seal}: right, {told['tiers'][1]['copies']}. {said.strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
