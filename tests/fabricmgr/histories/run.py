#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Random histories of a fabric with three managers on three etcd members, two memory servers, pool files, four agents
and their programs, each node in a network namespace: managers, etcd members and agents are killed and stopped, links
cut, disks filled, clocks set and backups put back, while callers change regions and programs use theirs. After each one, all is checked:
docs/fabric-manager.md says what. Needs root.

    run.py --bin DIR [--seed S] [--count N] [--seconds-each T] [--keep DIR]
    run.py --bin DIR --kills N [--cut-off]
"""

import argparse
import os
import pathlib
import shutil
import sys
import time

INSIDE = "TIDEPOOL_HISTORIES_INSIDE"
TOOLS = {"ip": "iproute2", "etcd": "etcd-server", "etcdctl": "etcd-client", "faketime": "faketime", "nsenter": "util-linux"}


def enter_namespaces():
    """In namespaces of its own for network, mounts and processes, so that nothing outlives it."""
    if os.geteuid() != 0:
        sys.exit("histories: network namespaces need root")
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            sys.exit(f"histories: {tool} is missing: install the package {package}")
    os.environ[INSIDE] = "yes"
    os.execvp("unshare", ["unshare", "--net", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
                          "--mount-proc", sys.executable, *sys.argv])


def arguments():
    parser = argparse.ArgumentParser(description="random histories of a fabric with three managers")
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="where fabricmgr and tidepool are")
    parser.add_argument("--seed", type=int, default=1, help="the first history's")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seconds-each", type=float, default=25, help="for how long there are faults")
    parser.add_argument("--kills", type=int, help="only measure how long changes wait after the leader was killed")
    parser.add_argument("--cut-off", action="store_true", help="with --kills: its node is cut off instead")
    parser.add_argument("--keep", type=pathlib.Path, help="where logs go, a folder each")
    return parser.parse_args()


def main():
    options = arguments()
    if INSIDE not in os.environ:
        enter_namespaces()
    import kills
    from cluster import command
    from history import History, Wrong
    for folder in ("/run", "/dev/shm"):  # what is left in there goes with them
        command("mount", "-t", "tmpfs", "-o", "size=3g", "tmpfs", folder)
    os.mkdir("/run/netns")
    if options.kills:
        kills.measure(options.bin.resolve(), options.kills, options.cut_off, sayer())
        return 0
    for seed in range(options.seed, options.seed + options.count):
        print(f"history {seed}", flush=True)
        keep = options.keep / str(seed) if options.keep else None
        if not play(History(options.bin.resolve(), seed, options.seconds_each, sayer()), keep, Wrong):
            print(f"history {seed} failed; again: {sys.argv[0]} --bin {options.bin} --seed {seed} --count 1 "
                  f"--seconds-each {options.seconds_each:g}", flush=True)
            return 1
    return 0


def sayer():
    start = time.monotonic()
    return lambda text: print(f"  {time.monotonic() - start:6.1f} s  {text}", flush=True)


def play(history, keep, wrong):
    """Whether it was good."""
    try:
        history.say(history.run())
        return True
    except wrong as error:
        print(error, flush=True)
        return False
    finally:
        history.end(keep)


if __name__ == "__main__":
    sys.exit(main())
