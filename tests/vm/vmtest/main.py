# SPDX-License-Identifier: Apache-2.0
"""tests/vm/run: gets what is missing, runs the tests, prints a summary; exit status 0 when all passed."""

import argparse
import json
import os
import random
import signal
import sys
import threading
import time

from . import form, initramfs, packages, runner
from .modules import Modules
from .places import RUNS, WORK, VmError, say
from .schedule import Schedule, Standstill

# The longest first, and beside the one that waits most those that need most; those that are not here come behind, by name.
FIRST = [
    *("cxl-manager-killed", "verbs-transport", "numa-promotion", "cxl-agent-killed", "cxl-pooling", "cxl-host", "cxl-drain"),
    *("cxl-promotion", "verbs-lost-rows", "verbs-rows", "verbs-lost-device", "numa-fasttext", "dax-fasttext"),
    *("verbs-fasttext", "verbs-lost-server", "numa-strays"),
]
SEEDS = 1000
TURNS = 10  # so many --turn one after the other run all but those that measure


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="tests/vm/run",
        description="Tests in virtual machines, against the kernel's own CXL, NUMA and RDMA drivers.",
    )
    parser.add_argument("--only", metavar="NAME,...", help="these tests alone")
    parser.add_argument(
        "--turn",
        metavar="COMMIT",
        type=lambda text: int(text, 16),
        help=f"beside those of --only one of {TURNS} shares of the others: which, a commit's hash or another hexadecimal number says",
    )
    parser.add_argument("--setup", action="store_true", help="get QEMU and the kernel, run nothing")
    parser.add_argument("--list", action="store_true", help="print the tests' names and end")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--short", action="store_true", help="the short forms: daemons are killed at a share of their steps")
    parser.add_argument("--seed", type=int, metavar="N", help="which of the steps that is (any)")
    standard = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=standard, metavar="N", help=f"processors to use ({standard})")
    return parser.parse_args(arguments)


def rank(name):
    return (0, FIRST.index(name)) if name in FIRST else (1, 0)


def choose(only, turn=None):
    tests = {module.name: module for module in runner.load_all()}
    in_order = sorted(tests, key=lambda name: (*rank(name), name))
    named = [] if only is None else only.split(",")
    unknown = [name for name in named if name not in tests]
    if unknown:
        raise VmError(f"no test named {', '.join(unknown)}; there are: {', '.join(tests)}")
    if turn is not None:
        # Neighbours in the order take alike long: so do the shares.
        others = [name for name in in_order if name not in named and not getattr(tests[name], "ALONE", False)]
        chosen = {*named, *others[turn % TURNS :: TURNS]}
        return [tests[name] for name in in_order if name in chosen]
    return [tests[name] for name in named or in_order]


def run_all(chosen, jobs, standstill):
    modules = Modules()
    names = {name for test in chosen for machine in test.MACHINES for name in runner.modules_of(machine)}
    base = initramfs.base(modules, sorted(names))
    tests = [runner.Test(module, base, modules) for module in chosen]
    return Schedule(tests, jobs, time.monotonic).run(lambda test: test.run(standstill))


def summary(outcomes, seconds, still):
    width = max(len(one.name) for one in outcomes)
    for one in outcomes:
        times = f"{one.seconds:4.0f} s  {one.cpu_seconds:4.0f} s of processors"
        yield f"{'pass' if one.passed else 'FAIL'}  {one.name:<{width}}  {times}"
        for note in one.notes:
            yield f"      {note}"
        if one.error:
            yield "      " + one.error.replace("\n", "\n      ")
    if still:
        yield f"vm-check: everything stood still for {still:.0f} s of that time"
    failed = sum(not one.passed for one in outcomes)
    used = sum(one.cpu_seconds for one in outcomes)
    yield (
        f"vm-check: {len(outcomes) - failed} of {len(outcomes)} passed in {seconds:.0f} s, "
        f"{used:.0f} s of processors{form.named()}; logs: {RUNS}"
    )


def report(outcomes, seconds, still, as_json):
    text = "\n".join(summary(outcomes, seconds, still)) + "\n"
    (RUNS / "summary.txt").write_text(text, encoding="utf-8")
    if as_json:
        tests = [dict(vars(one), passed=one.passed) for one in outcomes]
        whole = {"seconds": seconds, "stood_still": still, "short": form.SHORT, "seed": form.SEED}
        text = json.dumps(dict(whole, tests=tests), indent=1) + "\n"
    print(text, end="", flush=True)


def main(arguments=None):
    asked = parse(arguments)
    try:
        form.SHORT = asked.short
        form.SEED = random.randrange(SEEDS) if asked.seed is None else asked.seed
        chosen = choose(asked.only, asked.turn)
        if asked.list:
            print("\n".join(f"{test.name:<20} {test.__doc__.splitlines()[0]}" for test in chosen))
            return 0
        WORK.mkdir(parents=True, exist_ok=True)
        packages.setup()
        if asked.setup:
            say(f"setup: all there, in {packages.SYSTEM}")
            return 0
        say(f"vm-check: {len(chosen)} tests{form.named()}")
        began = time.monotonic()
        standstill = Standstill()
        threading.Thread(target=standstill.watch, daemon=True).start()
        outcomes = run_all(chosen, asked.jobs, standstill)
    except VmError as error:
        say(f"vm-check: {error}")
        return 2
    report(outcomes, time.monotonic() - began, standstill.seconds, asked.json)
    return 0 if all(one.passed for one in outcomes) else 1


def entry():
    def leave(*_):
        # Machines die with this process (PR_SET_PDEATHSIG); waiting for their threads would take their time limits.
        os._exit(143)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    sys.exit(main())
