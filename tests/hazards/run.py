#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one hazard plain, over a direct tier and over a memory server (or over a file), and compares.

The same bytes on stdout and the same exit status (or signal) are wanted three times, within the time
allowed each. Every run has a session of its own; what it leaves behind comes back to this process,
which adopts orphans, and is ended then, or when this process is told to end. Nothing else is ever
signalled.

  run.py --bin DIR [--status N] [--still] [--setenv K=V].. [--conf C] [--dram SIZE] [--timeout S]
         [--only direct|remote|file] PROG ARGS..

--status N  what the plain run must end with: an exit status, or -SIGNAL
--no-stats  the program forbids itself to write a file at its end
--still     the program need not move a page (it is about something else)
"""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PRCTL = ctypes.CDLL(None, use_errno=True).prctl
ENDING_SECONDS = 10  # what was killed is gone by then, or never goes


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--dram", default="12M")
    parser.add_argument("--far", default="256M")
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--setenv", action="append", default=[])
    parser.add_argument("--timeout", type=float, default=180)
    parser.add_argument("--status", type=int, default=0)
    parser.add_argument("--still", action="store_true")
    parser.add_argument("--no-stats", action="store_true")
    parser.add_argument("--only", choices=["direct", "remote", "file"])
    parser.add_argument("program", nargs=argparse.REMAINDER)
    return parser.parse_args()


def children(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            # A thread that has ended meanwhile does not hide the children of the others.
            with contextlib.suppress(OSError):
                found += map(int, pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except OSError:
        pass  # the process has ended
    return found


def descendants(pid):
    found = children(pid)
    for child in list(found):
        found += descendants(child)
    return found


def others(keep):
    return [pid for pid in descendants(os.getpid()) if pid not in keep]


def reap(keep):
    """Takes note of the children that have ended, but for `keep`."""
    for pid in children(os.getpid()):
        if pid not in keep:
            os.waitpid(pid, os.WNOHANG)


def end_leftovers(keep):
    """Ends what a run left, until nothing but `keep` descends from this process; returns what does not
    end. Orphans come to this process at any moment, so nothing here waits for one in particular."""
    deadline = time.monotonic() + ENDING_SECONDS
    while (left := others(keep)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap(keep)
        time.sleep(0.005)
    return left


def tell_where(pids):
    """Prints where each thread of `pids` stands: of a run that does not end, this is what one wants."""
    for pid in pids:
        for task in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*"), key=lambda path: int(path.name)):
            try:
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                print(f"   {pid}/{task.name} {(task / 'comm').read_text().strip()}: {state}, in "
                      f"{(task / 'wchan').read_text()}, system call {(task / 'syscall').read_text()}", end="")
            except OSError:
                continue  # it ended meanwhile
        try:
            trace = subprocess.run(["gdb", "-nx", "-batch", "-p", str(pid), "-ex", "thread apply all bt 24"],
                                   stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
            print("".join(f"   {line}\n" for line in trace.stdout.decode(errors="replace").splitlines()
                          if line.startswith(("#", "Thread"))), end="")
        except (OSError, subprocess.TimeoutExpired) as problem:
            print(f"   no backtrace: {problem}")


class Outcome:
    def __init__(self, name, status, out, err):
        self.name, self.status, self.out, self.err = name, status, out, err

    def show(self):
        print(f"-- {self.name}: status {self.status}")
        for kind, text in (("stdout", self.out), ("stderr", self.err)):
            lines = text.decode(errors="replace").splitlines()
            print("".join(f"   {kind}: {line}\n" for line in lines[-20:]), end="")


def run(name, command, options, work, keep):
    """Output goes to files: a pipe would be held open by what the program leaves behind."""
    environment = dict(os.environ, **dict(pair.split("=", 1) for pair in options.setenv))
    with open(work / "out", "w+b") as out, open(work / "err", "w+b") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=work,
                                   env=environment, start_new_session=True, preexec_fn=end_with_parent)
        # A daemon works on after its parent: its output counts too.
        deadline = time.monotonic() + options.timeout
        try:
            status = process.wait(options.timeout)
            while others(keep) and time.monotonic() < deadline:
                reap(keep)
                time.sleep(0.005)
            if left := others(keep):
                status = "left a process that did not end"
                print(f"-- {name}: {status}:")
                tell_where(left + keep)
        except subprocess.TimeoutExpired:
            status = f"no end within {options.timeout:g} s"
            print(f"-- {name}: {status}; it stands here:")
            tell_where(others(keep) + keep)
        if stuck := end_leftovers(keep):
            status = f"{status}; cannot be killed: {stuck}"
        out.seek(0)
        err.seek(0)
        return Outcome(name, status, out.read(), err.read())


def end_with_parent():
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start_server(fabricmgr, work):
    """In a session of its own, as a service has: in one with compilers, with which the scheduler has it
    share a processor as a group (autogroup), a worker was seen to wait 5 s for its turn, and was lost."""
    server = subprocess.Popen([fabricmgr, "memserver", "--listen", "127.0.0.1:0", "--size", "16G"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              cwd=work, start_new_session=True, preexec_fn=end_with_parent)
    said = b""
    while line := server.stdout.readline():
        said += line
        if found := re.search(rb"127\.0\.0\.1:[1-9]\d*", line):
            # By name: children of a fork connect anew, and libc's knowledge of names may be far by then.
            return server, found.group().decode().replace("127.0.0.1", "localhost")
    sys.exit(f"the memory server did not start: {said.decode()}")


def moved(stats):
    """Bytes that went to far memory, or None without statistics (ended by a signal, say)."""
    try:
        report = json.loads(stats.read_text())
    except (OSError, ValueError):
        return None
    return report["demoted_bytes"] + sum(tier["writes_bytes"] + tier["used_bytes"]
                                         for tier in report["tiers"][1:])


def compare(kind, far, options, work, plain, keep):
    stats = work / f"stats-{kind}"
    command = [f"{options.bin}/tidepool", "run", "--dram", options.dram, "--far", far]
    if not options.no_stats:
        command += ["--stats", str(stats)]
    for conf in options.conf:
        command += ["--conf", conf]
    command += ["--", *options.program]
    started = time.monotonic()
    outcome = run(kind, command, options, work, keep)
    amount = moved(stats)
    print(f"{kind}: {time.monotonic() - started:.2f} s, "
          f"{'no statistics' if amount is None else f'{amount} bytes went far'}")
    # Not strict:true, which would manage each process from its start: most wake up later.
    same = (outcome.out == plain.out and outcome.status == plain.status
            and b"not managing memory" not in outcome.err)
    went = options.still or amount is None or amount > 0
    if not went:
        print(f"{kind}: nothing went far, so nothing was tried")
    if not same:
        outcome.show()
    return same and went


def main():
    options = parse()
    PRCTL(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: (end_leftovers([]), os._exit(1)))
    with tempfile.TemporaryDirectory(prefix="hazard-") as folder:
        work = pathlib.Path(folder)
        os.chmod(work, 0o755)
        plain = run("plain", options.program, options, work, [])
        good = plain.status == options.status
        if not good:
            print(f"the plain run must end with {options.status}")
        if options.only == "file":
            good &= compare("file", f"file:/var/tmp:{options.far}", options, work, plain, [])
        if options.only in (None, "direct"):
            good &= compare("direct", f"cxl:{options.far}", options, work, plain, [])
        if options.only in (None, "remote"):
            server, address = start_server(f"{options.bin}/fabricmgr", work)
            try:
                good &= compare("remote", f"remote:{address}:{options.far}", options, work, plain,
                                [server.pid])
            finally:
                server.kill()
                server.wait()
        if not good:
            plain.show()
    return 0 if good else 1


sys.exit(main())
