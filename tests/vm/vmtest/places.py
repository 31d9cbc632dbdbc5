# SPDX-License-Identifier: Apache-2.0
"""Where things are, and how to say that something is not there."""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("TIDEPOOL_BUILD", ROOT / "build" / "release"))
WORK = pathlib.Path(os.environ.get("TIDEPOOL_VM_WORK", ROOT / "build" / "vm"))
SYSTEM = WORK / "system"  # what the packages hold, extracted: QEMU, the kernel, busybox
RUNS = WORK / "runs"  # one folder a test: console logs, results
LIBRARIES = SYSTEM / "usr" / "lib" / "x86_64-linux-gnu"


class VmError(Exception):
    """Something the person who runs the tests can mend; the text says what and how."""


def say(text):
    """Progress and talk: to stderr, so that stdout holds the summary alone."""
    print(text, file=sys.stderr, flush=True)
