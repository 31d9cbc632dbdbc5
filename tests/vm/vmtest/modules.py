# SPDX-License-Identifier: Apache-2.0
"""Kernel modules of the extracted kernel: which file a name is, what it needs, and in which order they load.

Debian's package holds no modules.dep (its postinst makes that), so dependencies are read from the modules themselves.
"""

import lzma
import re

from .packages import kernel
from .places import VmError


class Modules:
    def __init__(self):
        self.folder = kernel()[1]
        self.files = {}
        for path in self.folder.rglob("*.ko*"):
            self.files[self.name(path.name.split(".ko")[0])] = path
        self.builtin = {
            self.name(line.rsplit("/", 1)[-1].removesuffix(".ko"))
            for line in (self.folder / "modules.builtin").read_text(encoding="utf-8").split()
        }
        self.contents = {}

    @staticmethod
    def name(text):
        return text.replace("-", "_")

    def content(self, name):
        """The module as insmod takes it: busybox's cannot decompress xz."""
        if name not in self.contents:
            path = self.files.get(name)
            if path is None:
                raise VmError(f"{self.folder} has no module {name}")
            data = path.read_bytes()
            self.contents[name] = lzma.decompress(data) if path.suffix == ".xz" else data
        return self.contents[name]

    def needs(self, name):
        """What it links to, and what it says should be there first."""
        info = self.content(name)
        names = []
        for key in (rb"depends", rb"softdep"):
            for value in re.findall(rb"\0" + key + rb"=([^\0]*)\0", info):
                names += [word for word in re.split(r"[,\s]+", value.decode()) if word]
        return [self.name(word) for word in names if not word.endswith(":")]

    def order(self, wanted):
        """The wanted modules and all that they need, each after what it needs."""
        ordered, seen = [], set()

        def visit(name, asked):
            if name in seen or name in self.builtin:
                return
            seen.add(name)
            if name not in self.files and not asked:
                return  # a soft dependency on an algorithm's name, not a module's
            for other in self.needs(name):
                visit(other, asked=False)
            ordered.append(name)

        for name in wanted:
            visit(self.name(name), asked=True)
        return ordered
