# SPDX-License-Identifier: Apache-2.0
"""QEMU, a kernel and busybox, from Debian's packages: downloaded and extracted below build/vm, never installed.

Neither apt's sources nor its lists nor dpkg's state on this system are changed, and no root is needed: apt-get works on
lists and a cache of its own. What QEMU needs beyond the packages that are installed here is downloaded with it. Debian
12 has the QEMU and the kernel that the drivers need in bookworm-backports.
"""

import os
import re
import shutil
import subprocess

from .places import SYSTEM, WORK, VmError, say

APT = WORK / "apt"
STAMP = SYSTEM / ".complete"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org/debian"
KERNEL = "linux-image-amd64"  # depends on the newest kernel
# Named one by one: --reinstall has those downloaded that are installed here.
QEMU = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios", "ipxe-qemu")
OLDEST = (6, 12)
# For RDMA: the tools, and rdma-core with what it loads by itself. All of it, since this system may have none.
RDMA = (
    *("perftest", "ibverbs-providers", "libibverbs1", "librdmacm1", "libibumad3", "libnl-3-200", "libnl-route-3-200"),
    *("libpci3", "libudev1", "iproute2", "libmnl0", "libbsd0", "libmd0", "libcap2"),
)
FORMAT = "2"  # another one makes a new folder of packages


def mirror():
    """The mirror that this system has bookworm from, since it may reach no other."""
    words = []
    for folder, _, names in os.walk("/etc/apt"):
        for name in sorted(names):
            if name.endswith((".list", ".sources")):
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                    words += [w for line in file if not line.lstrip().startswith("#") for w in line.split()]
    for word in words:
        if re.fullmatch(r"(https?|file)://\S*/debian/?", word):
            return word.rstrip("/")
    return MIRROR


def sources():
    return (
        f"Types: deb\nURIs: {mirror()}\nSuites: bookworm bookworm-updates bookworm-backports\n"
        f"Components: main\nSigned-By: {KEYRING}\n"
    )


def apt(*words):
    """Runs apt-get or apt-cache on lists of our own; returns what it prints."""
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": APT / "sources",
        "Dir::State::lists": APT / "lists",
        "Dir::Cache": APT / "cache",
        "Debug::NoLocking": "true",
        "APT::Sandbox::User": "",
        "APT::Get::List-Cleanup": "false",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    command = [words[0], "-q"]
    for key, value in settings.items():
        command += ["-o", f"{key}={value}"]
    try:
        done = subprocess.run(
            command + list(words[1:]),
            cwd=APT / "cache" / "archives",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
    except FileNotFoundError:
        raise VmError("no apt-get here: the testbed takes QEMU and a kernel from Debian 12's packages") from None
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise VmError(f"{' '.join(words)} failed; is the mirror {mirror()} reachable?\n{last}")
    return done.stdout


def kernel_package():
    versions = re.findall(r"^Depends:.*?\b(linux-image-(\d+)\.(\d+)[^\s,]*)", apt("apt-cache", "show", KERNEL), re.M)
    major, minor, name = max(((int(a), int(b), name) for name, a, b in versions), default=(0, 0, ""))
    if (major, minor) < OLDEST:
        raise VmError(f"bookworm-backports of {mirror()} has no kernel {OLDEST[0]}.{OLDEST[1]}")
    return name


def download():
    for folder in ("sources", "lists/partial", "cache/archives/partial"):
        (APT / folder).mkdir(parents=True, exist_ok=True)
    if not os.path.exists(KEYRING):
        raise VmError(f"{KEYRING} is missing; install the package debian-archive-keyring")
    (APT / "sources" / "testbed.sources").write_text(sources(), encoding="utf-8")
    say(f"setup: package lists of {mirror()}")
    apt("apt-get", "update")
    single = [kernel_package(), "busybox-static", *RDMA]
    if shutil.which("fasttext") is None:
        single += ["fasttext", "libfasttext0"]
    say(f"setup: downloading qemu-system-x86, {', '.join(single)}")
    apt("apt-get", "download", *single)
    apt(
        *("apt-get", "install", "--yes", "--download-only", "--no-install-recommends"),
        *("--reinstall", "-t", "bookworm-backports", *QEMU),
    )
    return sorted((APT / "cache" / "archives").glob("*.deb"))


def extract(packages):
    for package in packages:
        done = subprocess.run(
            ["dpkg-deb", "-x", package, SYSTEM], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise VmError(f"cannot extract {package}: {done.stderr.strip()}")


def ready():
    return STAMP.exists() and STAMP.read_text(encoding="utf-8").startswith(FORMAT + "\n")


def setup():
    """Does nothing, and needs no network, if everything is there."""
    if ready():
        return
    if os.uname().machine != "x86_64":
        raise VmError("the testbed runs x86-64 machines with this system's programs: it needs such a system")
    shutil.rmtree(SYSTEM, ignore_errors=True)
    shutil.rmtree(APT / "cache", ignore_errors=True)
    SYSTEM.mkdir(parents=True)
    packages = download()
    say(f"setup: extracting {len(packages)} packages")
    extract(packages)
    for wanted in ("usr/bin/qemu-system-x86_64", "boot", "lib/modules", "bin/busybox"):
        if not (SYSTEM / wanted).exists():
            raise VmError(f"the packages did not hold {wanted}: remove {WORK} and try again")
    names = "\n".join(package.name for package in packages)
    STAMP.write_text(f"{FORMAT}\n{names}\n", encoding="utf-8")
    shutil.rmtree(APT / "cache", ignore_errors=True)


def kernel():
    """(path of the kernel, folder of its modules)."""
    images = sorted((SYSTEM / "boot").glob("vmlinuz-*"))
    if not images:
        raise VmError(f"no kernel in {SYSTEM}: remove {WORK} and try again")
    return images[-1], SYSTEM / "lib" / "modules" / images[-1].name.removeprefix("vmlinuz-")
