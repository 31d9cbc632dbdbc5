# SPDX-License-Identifier: Apache-2.0
"""The root file system of the machines: a cpio archive of busybox, modules, programs and their libraries.

The kernel takes several archives, one after the other. The first, the same for all tests of a run, is made once; what
a test adds is small and comes behind it. Neither is compressed, since the machine would take seconds to undo that, and
our own programs come without what debuggers need.
"""

import os
import pathlib
import re
import shutil
import stat
import subprocess

from . import programs
from .places import BUILD, HERE, ROOT, SYSTEM, WORK, VmError

PROGRAMS = {
    "usr/bin/tidepool": BUILD / "bin" / "tidepool",
    "usr/bin/fabricmgr": BUILD / "bin" / "fabricmgr",
    "usr/lib/libtidepool-preload.so": BUILD / "lib" / "libtidepool-preload.so",
    "usr/bin/gups": BUILD / "bench" / "gups",
    "usr/bin/table-on-tier": BUILD / "bench" / "table-on-tier",
}
WORDS = 8000
LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")


class Archive:
    """A cpio archive in the `newc` format: 110 bytes of hexadecimal header, name, data, each padded to 4 bytes."""

    def __init__(self):
        self.data = bytearray()
        self.inode = 1
        self.names = set()

    def entry(self, name, mode, content=b"", device=(0, 0)):
        if name in self.names:
            return
        parent = os.path.dirname(name)
        if parent:
            self.folder(parent)
        self.names.add(name)
        encoded = name.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(encoded), 0)
        self.inode += 1
        self.data += b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
        self.pad()
        self.data += content
        self.pad()

    def pad(self):
        self.data += b"\0" * (-len(self.data) % 4)

    def folder(self, name):
        self.entry(name, stat.S_IFDIR | 0o755)

    def file(self, name, content, mode=0o644):
        self.entry(name, stat.S_IFREG | mode, content)

    def link(self, name, target):
        self.entry(name, stat.S_IFLNK | 0o777, str(target).encode())

    def finish(self):
        self.entry("TRAILER!!!", 0)
        return bytes(self.data)


def libraries(program):
    """The shared libraries that a program of this system loads, by the loader's own word; one from an extracted package
    finds those there first."""
    environment = dict(os.environ)
    if SYSTEM in program.parents:
        environment["LD_LIBRARY_PATH"] = ":".join(str(SYSTEM / folder) for folder in LIBRARY_FOLDERS)
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False, env=environment)
    missing = re.findall(r"(\S+) => not found", done.stdout)
    if missing:
        raise VmError(f"{program} needs {', '.join(missing)}, not installed here")
    return [pathlib.Path(path) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(", done.stdout, re.M)]


def stripped(program):
    """One of our own programs without its line tables, made anew when it has changed."""
    small = WORK / "programs" / "stripped" / program.name
    if not small.exists() or small.stat().st_mtime < program.stat().st_mtime:
        small.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["strip", "-g", "-o", small, program], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise VmError(f"cannot strip {program}: {done.stderr.strip()}")
    return small


def add_program(archive, name, path):
    """The program under the name, and its libraries where they are on this system."""
    if not path.exists():
        raise VmError(f"{path} is missing; run 'make' first")
    content = stripped(path) if BUILD in path.parents else path
    archive.file(name, content.read_bytes(), 0o755)
    for library in libraries(path):
        place = library.relative_to(SYSTEM) if SYSTEM in library.parents else str(library).lstrip("/")
        archive.file(str(place), library.read_bytes(), 0o755)


def fasttext():
    installed = shutil.which("fasttext")
    return pathlib.Path(installed) if installed else SYSTEM / "usr" / "bin" / "fasttext"


def text():
    """What fastText is trained on: the words of our own documents, few: an emulated processor is slow."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    words = re.findall(r"[a-z]+", " ".join(page.read_text(encoding="utf-8").lower() for page in pages))[:WORDS]
    lines = [" ".join(words[at : at + 20]) + "\n" for at in range(0, len(words), 20)]
    return "".join(lines).encode()


def base(modules, names):
    """The archive that all machines have: `names` are the modules that any of them may load."""
    archive = Archive()
    for folder in ("proc", "sys", "dev", "tmp", "run", "results", "etc", "root"):
        archive.folder(folder)
    archive.file("bin/busybox", (SYSTEM / "bin" / "busybox").read_bytes(), 0o755)
    archive.link("bin/sh", "busybox")
    archive.entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    for script in sorted((HERE / "guest").glob("*.sh")):
        place = "init" if script.name == "init.sh" else f"lib/guest/{script.name}"
        archive.file(place, script.read_bytes(), 0o755)
    for name in modules.order(names):
        archive.file(f"lib/modules/{name}.ko", modules.content(name))
    for name, path in (PROGRAMS | programs.compiled()).items():
        add_program(archive, name, path)
    add_program(archive, "usr/bin/fasttext", fasttext())
    archive.file("text.txt", text())
    return archive.finish()


def addition(script, modules, environment, programs):
    """What one machine has besides: its script, its modules in order, its environment, programs or libraries by name."""
    archive = Archive()
    for name, path in programs.items():
        add_program(archive, name, path)
    archive.file("test.sh", script.encode(), 0o755)
    archive.file("etc/modules", "".join(f"{name}\n" for name in modules).encode())
    lines = "".join(f"export {key}='{value}'\n" for key, value in environment.items())
    archive.file("etc/environment.sh", lines.encode())
    return archive.finish()
