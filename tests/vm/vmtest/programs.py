# SPDX-License-Identifier: Apache-2.0
"""Programs of the testbed itself, for the machines: each file of tests/vm/programs, compiled when it has changed."""

import subprocess

from .places import HERE, WORK, VmError

# Name in the machines: (source, more words for the compiler).
PROGRAMS = {
    "usr/bin/device_bytes": ("device_bytes.cc", []),
    "usr/bin/hot_set": ("hot_set.cc", []),
    "usr/lib/kill_at_steps.so": ("kill_at_steps.cc", ["-shared", "-fPIC"]),
    "usr/lib/kill_after_writes.so": ("kill_after_writes.cc", ["-shared", "-fPIC"]),
}


def compiled():
    """{name in the machines: path of the program}."""
    found = {}
    folder = WORK / "programs"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (file, words) in PROGRAMS.items():
        source, program = HERE / "programs" / file, folder / name.rsplit("/", 1)[-1]
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            command = ["g++", "-std=c++20", "-O2", "-Wall", "-Wextra", *words, source, "-o", program]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise VmError(f"cannot compile {source}:\n{done.stderr}")
        found[name] = program
    return found
