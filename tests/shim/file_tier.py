#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An unchanged program over a file on a disk gives the plain run's output, and says nothing; so it does once the disk is
full, with lines that say so. What is there is refused, and stays as it is; nothing is left of a program that was killed.

  file_tier.py TIDEPOOL
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

NUMBERS = 1_500_000


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "inside":
        return full_disk(sys.argv[2], pathlib.Path(sys.argv[3]))
    tidepool = sys.argv[1]
    os.environ["LC_ALL"] = "C"
    with tempfile.TemporaryDirectory(prefix="tidepool-file-", dir="/var/tmp") as folder:
        work = pathlib.Path(folder)
        (work / "disk").mkdir()
        with open(work / "input", "w", encoding="ascii") as file:
            file.writelines(f"{number}\n" for number in range(NUMBERS, 0, -1))
        output, errors, stats = sort(tidepool, work, "512M:direct")
        assert output == plain(), "the output changed"
        assert errors == "", errors
        assert stats["tiers"][1]["writes_bytes"] > 20 << 20, stats["tiers"]
        assert stats["tiers"][1]["reads_bytes"] > 0, stats["tiers"]
        # A mount of its own; root of a user namespace would not have userfaultfd.
        namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        subprocess.run([*namespace, sys.executable, __file__, "inside", tidepool, folder], check=True)
        refused(tidepool, work)
        killed(tidepool, work)
    return 0


def plain():
    return "".join(f"{number}\n" for number in range(1, NUMBERS + 1))


def sort(tidepool, work, rest):
    """Output, what was said, and the statistics."""
    command = ["sort", "-n", "--parallel=1", "-S", "400M", str(work / "input")]
    far = f"file:{work}/disk:{rest}"
    done = subprocess.run([tidepool, "run", "--dram", "24M", "--far", far, "--conf", "compress:off", "--stats",
                           str(work / "stats"), "--", *command], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr, json.loads((work / "stats").read_text())


def full_disk(tidepool, work):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(work / "disk")], check=True)
    output, errors, stats = sort(tidepool, work, "512M")
    assert output == plain(), "the output changed on a full disk"
    assert "takes no more pages" in errors and "far memory is full" in errors, errors
    assert stats["tiers"][1]["writes_bytes"] > 0, stats["tiers"]
    return 0


def refused(tidepool, work):
    precious = work / "disk" / "file"
    precious.write_text("precious")
    done = subprocess.run([tidepool, "run", "--dram", "24M", "--far", f"file:{precious}:64M", "--", "true"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 125 and "would be overwritten" in done.stderr, done
    assert precious.read_text() == "precious"
    precious.unlink()


def killed(tidepool, work):
    command = [tidepool, "run", "--dram", "24M", "--conf", "start:now", "--far", f"file:{work}/disk/swap:64M", "--",
               "sh", "-c", "echo here; read line"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
        assert victim.stdout.readline() == b"here\n"
        opened = [os.readlink(fd) for fd in pathlib.Path(f"/proc/{victim.pid}/fd").iterdir()]
        assert any(name.startswith(f"{work}/disk/") and name.endswith("(deleted)") for name in opened), opened
        victim.kill()
    assert not list((work / "disk").iterdir())


sys.exit(main())
