# SPDX-License-Identifier: Apache-2.0
"""tests/vm/run: gets what is missing, runs the tests, prints a summary; exit status 0 when all passed."""

import argparse
import concurrent.futures
import json
import os
import signal
import sys

from . import initramfs, packages, runner
from .modules import Modules
from .places import RUNS, WORK, VmError, say


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="tests/vm/run",
        description="Tests in virtual machines, against the kernel's own CXL, NUMA and RDMA drivers.",
    )
    parser.add_argument("--only", metavar="NAME,...", help="these tests alone")
    parser.add_argument("--setup", action="store_true", help="get QEMU and the kernel, run nothing")
    parser.add_argument("--list", action="store_true", help="print the tests' names and end")
    parser.add_argument("--keep", action="store_true", help="keep the logs of tests that passed, too")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    standard = max(1, (os.cpu_count() or 1) // 2)  # a machine has two processors
    parser.add_argument("--jobs", type=int, default=standard, metavar="N", help=f"tests at a time ({standard})")
    return parser.parse_args(arguments)


def choose(only):
    tests = {module.name: module for module in runner.load_all()}
    if only is None:
        return list(tests.values())
    unknown = [name for name in only.split(",") if name not in tests]
    if unknown:
        raise VmError(f"no test named {', '.join(unknown)}; there are: {', '.join(tests)}")
    return [tests[name] for name in only.split(",")]


def run_all(chosen, jobs, keep):
    modules = Modules()
    names = {name for test in chosen for machine in test.MACHINES for name in runner.modules_of(machine)}
    base = initramfs.base(modules, sorted(names))
    tests = [runner.Test(module, base, modules) for module in chosen]
    with concurrent.futures.ThreadPoolExecutor(max(1, jobs)) as pool:
        return list(pool.map(lambda test: test.run(keep), tests))


def report(outcomes, as_json):
    if as_json:
        print(json.dumps({"tests": [dict(vars(one), passed=one.passed) for one in outcomes]}, indent=1))
        return
    width = max(len(one.name) for one in outcomes)
    for one in outcomes:
        print(f"{'pass' if one.passed else 'FAIL'}  {one.name:<{width}}  {one.seconds:4.0f} s")
        for note in one.notes:
            print(f"      {note}")
        if one.error:
            print("      " + one.error.replace("\n", "\n      "))
            print(f"      logs: {RUNS / one.name}")
    failed = sum(not one.passed for one in outcomes)
    print(f"vm-check: {len(outcomes) - failed} of {len(outcomes)} passed", flush=True)


def main(arguments=None):
    asked = parse(arguments)
    try:
        chosen = choose(asked.only)
        if asked.list:
            print("\n".join(f"{test.name:<20} {test.__doc__.splitlines()[0]}" for test in chosen))
            return 0
        WORK.mkdir(parents=True, exist_ok=True)
        packages.setup()
        if asked.setup:
            say(f"setup: all there, in {packages.SYSTEM}")
            return 0
        outcomes = run_all(chosen, asked.jobs, asked.keep)
    except VmError as error:
        say(f"vm-check: {error}")
        return 2
    report(outcomes, asked.json)
    return 0 if all(one.passed for one in outcomes) else 1


def entry():
    def leave(*_):
        # Machines die with this process (PR_SET_PDEATHSIG); waiting for their threads would take their time limits.
        os._exit(143)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    sys.exit(main())
