# SPDX-License-Identifier: Apache-2.0
"""What machines need for RDMA by software (soft-RoCE, rxe): modules, rdma-core, tools. In a test: MODULES, PROGRAMS."""

from .initramfs import LIBRARY_FOLDERS
from .places import BUILD, SYSTEM

# rxe asks for crc32 by its name as an algorithm, so its dependencies do not tell.
MODULES = ["crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm"]
LIBRARIES = SYSTEM / LIBRARY_FOLDERS[0]


def tool(name):
    return {f"usr/bin/{name}": SYSTEM / "usr" / "bin" / name}


def built(name):
    return {f"usr/bin/{name}": BUILD / "bin" / name}


# Loaded by name when they are wanted, so that no program names them.
CORE = {
    **{f"{LIBRARY_FOLDERS[0]}/{name}": LIBRARIES / name for name in ("libibverbs.so.1", "librdmacm.so.1")},
    f"{LIBRARY_FOLDERS[0]}/libibverbs/librxe-rdmav34.so": LIBRARIES / "libibverbs" / "librxe-rdmav34.so",
    "etc/libibverbs.d/rxe.driver": SYSTEM / "etc" / "libibverbs.d" / "rxe.driver",
}
PROGRAMS = {**CORE, **tool("rdma"), **built("fabricmgr")}
