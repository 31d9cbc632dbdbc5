# SPDX-License-Identifier: Apache-2.0
"""`fabricmgr device discover` asks a CXL switch through its mailbox; ports, links and devices are those that the kernel sees."""

from vmtest.topology import Device, Machine, Switch, Window

SECONDS = 180
SWITCH = Switch([Device("256M"), Device("256M"), Device("256M", plugged=False)], serial=0x5C0FFEE)
MACHINES = [
    Machine(
        windows=[Window("1G", [SWITCH])],
        modules=["cxl_acpi", "cxl_pci", "cxl_mem"],
    )
]

SCRIPT = r"""
PCI=/sys/bus/pci/devices
cci=$(dirname "$(grep -l 0x0c0b00 $PCI/*/class)")

# The kernel's view of the switch: of each downstream port its number, the width and speed of its link, and the serial
# number of the device behind it.
kernel_sees() {
  local port dport pci
  for port in $CXL/port*; do
    [ "$(readlink -f "$port/uport")" = "$(readlink -f "${cci%.1}.0")" ] || continue
    for dport in "$port"/dport*; do
      pci=$(readlink -f "$dport")
      echo "${dport##*/dport}" "$(cat "$pci/current_link_width")" "$(cat "$pci/current_link_speed")" \
        "$(cat "$pci"/0000:*/mem*/serial 2>/dev/null || echo none)"
    done
  done
}

wait_for 20 test -e $CXL/endpoint3
wait_for 20 test -e $CXL/endpoint4
fabricmgr device discover
fabricmgr device discover --json >/results/before.json
kernel_sees >/results/before
[ "$(cat "$cci/enable")" = 0 ] || fail "the function was left enabled"

host say not root
echo "nobody:x:65534:65534::/:/bin/sh" >/etc/passwd
status=0
start-stop-daemon -S -c nobody -x /usr/bin/fabricmgr -- device discover 2>/tmp/said || status=$?
cat /tmp/said
[ $status = 4 ] || fail "who is not root got status $status"
grep -q 'be root' /tmp/said

host say a device more
host plug 2
wait_for 30 test -e $CXL/mem2
fabricmgr device discover
fabricmgr device discover --json >/results/after.json
kernel_sees >/results/after

host say several at a time
for i in 1 2 3 4 5 6; do
  {
    status=0
    fabricmgr device discover --json >/tmp/discover.$i 2>/tmp/refusal.$i || status=$?
    echo $status >/tmp/status.$i
  } &
done
wait
for i in 1 2 3 4 5 6; do
  case $(cat /tmp/status.$i) in
    0) cmp /tmp/discover.$i /results/after.json ;;
    6) grep -q 'another program talks to' /tmp/refusal.$i ;;
    *) fail "the $i-th ended with $(cat /tmp/status.$i): $(cat /tmp/refusal.$i)" ;;
  esac
done
[ "$(cat "$cci/enable")" = 0 ] || fail "the function was left enabled"

host say killed in the middle
status=0
KILL_AFTER_WRITES=1 LD_PRELOAD=/usr/lib/kill_after_writes.so fabricmgr device discover >/dev/null || status=$?
[ $status = 137 ] || fail "it was to be killed once it had enabled the function, and ended with $status"
fabricmgr device discover --json | cmp - /results/after.json

host say no such switch
echo 1 >"$cci/remove"
fabricmgr device discover --json >/results/none.json 2>/tmp/said
cat /tmp/said
grep -q 'no CXL switch takes commands' /tmp/said
"""
SPEEDS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # GT/s: PCIe's code


def compare(found, seen, serials):
    """What the switch says against the kernel's view; `serials` are of the devices that must be there, by port."""
    (switch,) = found["switches"]
    assert switch["serial"] == hex(SWITCH.serial) and switch["component"] == "switch", switch
    numbers = [*range(len(SWITCH.devices)), SWITCH.upstream_port]
    assert switch["active_ports"] == numbers and switch["physical_ports"] == len(numbers), switch
    assert switch["active_virtual_switches"] == [0] and switch["vppbs"] == len(numbers), switch
    ports = {port["port"]: port for port in switch["ports"]}
    assert ports.pop(SWITCH.upstream_port)["configuration"] == "upstream", ports
    kernel = {int(line[0]): line[1:] for line in map(str.split, seen.splitlines())}
    assert sorted(kernel) == sorted(ports), (kernel, ports)
    for number, (width, speed, _, _, serial) in kernel.items():
        port, wanted = ports[number], serials.get(number)
        assert port["configuration"] == "downstream" and port["trouble"] == "", port
        assert (port["link_width"], port["link_speed_code"]) == (int(width), SPEEDS[speed]), (port, kernel)
        assert serial == (hex(wanted) if wanted else "none"), (serial, wanted)
        assert (port["behind"] is not None) == bool(wanted) == (port["device_type"] == "type-3-mld"), port
        if wanted:
            behind = port["behind"]
            # QEMU's logical device 0 has its device's identity.
            assert behind["serial"] == serial and behind["component"] == "type-3", (behind, serial)
            assert [(one["id"], one["serial"]) for one in behind["logical_devices"]] == [(0, serial)], behind


def check(results):
    result = results[0]
    compare(result.json("before.json"), result.text("before"), {0: 0x101, 1: 0x102})
    compare(result.json("after.json"), result.text("after"), {0: 0x101, 1: 0x102, 2: 0x103})
    assert result.json("none.json") == {"switches": []}
