# SPDX-License-Identifier: Apache-2.0
"""The text that is trained on: words of the Linux 6.1 documentation, from Debian's linux-doc-6.1.

Files in sorted order, lines kept as lines, lower-case words only, cut at 6 MB on a line's end. The same
package version gives the same bytes; the SHA-256 is printed so that two runs can be told apart.
"""

import gzip
import hashlib
import os
import pathlib
import re
import subprocess

from .places import WORK, BenchError, say

PACKAGE = "linux-doc-6.1"
INSTALLED = pathlib.Path("/usr/share/doc") / PACKAGE / "Documentation"
SIZE = 6_000_000
WORD = re.compile(rb"[a-z]+(?:['_-][a-z]+)*")


def documentation():
    """The package's text files. Container images may be set to leave documentation out when they install a
    package; then the package itself is fetched and unpacked under build/bench."""
    if INSTALLED.is_dir():
        return INSTALLED
    unpacked = WORK / PACKAGE
    inside = unpacked / INSTALLED.relative_to("/")
    if not inside.is_dir():
        say(f"corpus: {INSTALLED} was left out of this system; fetching the package itself")
        unpacked.mkdir(parents=True, exist_ok=True)
        fetched = subprocess.run(
            ["apt-get", "-q", "download", PACKAGE], cwd=WORK, check=False, stdout=subprocess.DEVNULL
        )
        packages = sorted(WORK.glob(PACKAGE + "_*.deb"))
        if fetched.returncode != 0 or not packages:
            raise BenchError(f"no text to train on: install the Debian package {PACKAGE}")
        subprocess.run(["dpkg-deb", "-x", str(packages[-1]), str(unpacked)], check=True)
        packages[-1].unlink()
    if not inside.is_dir():
        raise BenchError(f"{PACKAGE} holds no Documentation folder")
    return inside


def lines(folder):
    def is_text(name):
        return name.endswith((".rst", ".txt", ".rst.gz", ".txt.gz"))

    files = sorted(path for path in folder.rglob("*") if path.is_file() and is_text(path.name))
    for path in files:
        data = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
        for line in data.lower().splitlines():
            words = WORD.findall(line)
            if words:
                yield b" ".join(words) + b"\n"


def make(size=SIZE):
    """Returns (path, sha256) of the text, made once and kept under build/bench."""
    WORK.mkdir(parents=True, exist_ok=True)
    path = WORK / f"corpus-{size}.txt"
    if not path.exists():
        say(f"corpus: making {size / 1e6:.0f} MB of text from {PACKAGE}")
        partial = path.with_suffix(f".{os.getpid()}.part")
        written = 0
        with open(partial, "wb") as out:
            for line in lines(documentation()):
                if written + len(line) > size:
                    break
                out.write(line)
                written += len(line)
        if written < size * 0.99:
            partial.unlink()
            raise BenchError(f"corpus: the documentation gave only {written} bytes of words")
        partial.rename(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return path, digest
