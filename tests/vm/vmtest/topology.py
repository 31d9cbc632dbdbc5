# SPDX-License-Identifier: Apache-2.0
"""What a test says its machines are made of, and the QEMU options that this means.

    Machine(memory="1G", windows=[Window(size="1G", devices=[Device("256M")])])

is a machine with 1 GiB and one CXL window (the host's address range for CXL memory, which the kernel makes one NUMA
node of) behind which one type-3 device of 256 MiB sits in a port. Devices of two machines with the same `file` are
heads of one shared device. A device with `plugged=False` is not there until the test adds it (Running.plug).
"""

import dataclasses

# Where a type-3 device's address space begins is up to the firmware; buses of windows must not meet.
FIRST_BUS = 12
BUS_STEP = 20
SWITCH_SLOTS = 64  # of root ports with a switch in them; devices have those below
SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_of(text):
    return int(text[:-1]) * SIZES[text[-1]]


@dataclasses.dataclass
class Device:
    """A type-3 device with volatile memory: all of `file`, or `size` bytes of it from `offset`. Without `file` it has
    one of its own. Devices of several machines with the same `serial` are one device, which a switch binds to one of them
    at a time, or of which each has a head."""

    size: str
    file: str = ""
    offset: str = "0K"
    plugged: bool = True
    serial: int = 0  # 0: one that no other device has


@dataclasses.dataclass
class Switch:
    """A CXL switch in a port of the window: one upstream port, a downstream port for each device (0, 1, ...), and a
    function that takes commands (switch mailbox CCI) beside the upstream port."""

    devices: list
    serial: int = 0x5C0
    upstream_port: int = 32  # its number; those of downstream ports are below


@dataclasses.dataclass
class Window:
    size: str
    devices: list  # Device and Switch, each in a port of its own


@dataclasses.dataclass
class Node:
    """A NUMA node of ordinary memory; without processors if `cpus` is empty ("0-1" or "0"). With `latency` (ns) and
    `bandwidth` (a second: "20G") the firmware states these, seen from node 0, in an HMAT: of all nodes, or of none."""

    memory: str
    cpus: str = ""
    latency: int = 0
    bandwidth: str = ""


@dataclasses.dataclass
class Machine:
    memory: str = "512M"
    cpus: int = 2
    windows: list = dataclasses.field(default_factory=list)
    nodes: list = dataclasses.field(default_factory=list)
    distances: dict = dataclasses.field(default_factory=dict)  # (from, to): distance
    link: bool = False  # network between the machines of the test: 10.9.0.1, 10.9.0.2
    modules: list = dataclasses.field(default_factory=list)
    kernel: str = ""  # more on the kernel's command line


def device_words(machine_index, place, device):
    """The objects of a device: ((qom object), (device)) as dictionaries, for the command line and for QMP alike."""
    backend = {
        "qom-type": "memory-backend-file",
        "id": f"vmem{place}",
        "share": True,
        "mem-path": device.file or f"own-{machine_index}-{place}.mem",
        "size": size_of(device.size),
        "offset": size_of(device.offset),
    }
    front = {
        "driver": "cxl-type3",
        "id": f"mem{place}",
        "bus": f"rp{place}",
        "volatile-memdev": f"vmem{place}",
        # As it is printed on a device; the driver wants it, and two must not be alike.
        "sn": device.serial or 0x100 * (machine_index + 1) + place + 1,
    }
    return backend, front


def options(values):
    """A dictionary as QEMU's key=value list."""

    def plain(value):
        return ("on" if value else "off") if isinstance(value, bool) else str(value)

    first = [plain(values[key]) for key in ("qom-type", "driver") if key in values]
    rest = [f"{k}={plain(v)}" for k, v in values.items() if k not in ("qom-type", "driver")]
    return ",".join(first + rest)


def devices_of(machine):
    """All type-3 devices, in the order of their places; those of a switch where the switch is."""
    found = []
    for window in machine.windows:
        for one in window.devices:
            found += one.devices if isinstance(one, Switch) else [one]
    return found


def port_words(index, place, port, bus, device):
    """A port, root or downstream, and the device in it, if it is there from the beginning."""
    kind, number = port
    words = ["-device", f"{kind},port={number},bus={bus},id=rp{place},chassis=0,slot={place + 2}"]
    if device.plugged:
        backend, front = device_words(index, place, device)
        words += ["-object", options(backend), "-device", options(front)]
    return words


def switch_words(index, place, bus, switch):
    """A root port, a switch in it, and its downstream ports, whose devices have the places from `place` on."""
    root, name = f"sp{place}", f"us{place}"
    words = ["-device", f"cxl-rp,port={SWITCH_SLOTS + place},bus={bus},id={root},chassis=0,slot={SWITCH_SLOTS + place}"]
    upstream = f"cxl-upstream,port={switch.upstream_port},bus={root},id={name},addr=0.0,multifunction=on"
    words += ["-device", f"{upstream},sn={switch.serial}"]
    words += ["-device", f"cxl-switch-mailbox-cci,bus={root},addr=0.1,target={name}"]
    for number, device in enumerate(switch.devices):
        words += port_words(index, place + number, ("cxl-downstream", number), name, device)
    return words


def cxl_words(index, machine):
    """Host bridges, root ports, switches, devices and windows."""
    words, place, windows = [], 0, []
    for number, window in enumerate(machine.windows):
        bus = FIRST_BUS + number * BUS_STEP
        words += ["-device", f"pxb-cxl,bus_nr={bus},bus=pcie.0,id=cxl.{number}"]
        for one in window.devices:
            if isinstance(one, Switch):
                words += switch_words(index, place, f"cxl.{number}", one)
                place += len(one.devices)
            else:
                words += port_words(index, place, ("cxl-rp", place), f"cxl.{number}", one)
                place += 1
        windows.append(f"cxl-fmw.{number}.targets.0=cxl.{number},cxl-fmw.{number}.size={window.size}")
    # All in one option: a list is not continued by the next.
    return words + (["-M", ",".join(windows)] if windows else [])


def has_hmat(machine):
    return any(node.latency for node in machine.nodes)


def node_words(machine):
    words = []
    for number, node in enumerate(machine.nodes):
        cpus = f",cpus={node.cpus}" if node.cpus else ""
        words += ["-object", f"memory-backend-ram,id=ram{number},size={node.memory}"]
        near = ",initiator=0" if has_hmat(machine) else ""
        words += ["-numa", f"node,nodeid={number},memdev=ram{number}{cpus}{near}"]
    for (one, other), distance in machine.distances.items():
        words += ["-numa", f"dist,src={one},dst={other},val={distance}"]
    if has_hmat(machine):
        for number, node in enumerate(machine.nodes):
            entry = f"hmat-lb,initiator=0,target={number},hierarchy=memory"
            words += ["-numa", f"{entry},data-type=access-latency,latency={node.latency}"]
            words += ["-numa", f"{entry},data-type=access-bandwidth,bandwidth={node.bandwidth}"]
    return words


def link_words(index, machine):
    """A network card for each machine of a pair, joined by a socket; before the CXL bridges, and on the first bus, or
    the bridges' buses are counted wrong."""
    if not machine.link:
        return []
    server = "on" if index == 0 else "off,reconnect-ms=200"
    return [
        *("-netdev", f"stream,id=n0,server={server},addr.type=unix,addr.path=link.sock"),
        *("-device", f"virtio-net-pci,netdev=n0,bus=pcie.0,mac=52:54:00:00:00:0{index + 1},romfile="),
    ]


def machine_words(index, machine):
    return [
        *("-M", "q35" + (",cxl=on" if machine.windows else "") + (",hmat=on" if has_hmat(machine) else "")),
        *("-smp", str(machine.cpus), "-m", f"{machine.memory},maxmem=16G,slots=8"),
        *node_words(machine),
        *link_words(index, machine),
        *cxl_words(index, machine),
    ]
