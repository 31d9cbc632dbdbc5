#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The testbed's own parts, without QEMU and without network: archives, topologies, the order of modules, what is told of
failures. Run by ctest as `vm_self`."""

import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from vmtest import form, initramfs, main, modules, packages, programs, runner, schedule, topology  # noqa: E402
from vmtest.machine import EmulatorCrash, Results, Running, wait_all  # noqa: E402
from vmtest.places import BUILD, HERE, VmError  # noqa: E402
from vmtest.topology import Device, Machine, Node, Window  # noqa: E402


def entries(archive):
    """(name, mode, content) of a cpio archive."""
    data, at, found = archive, 0, []
    while at < len(data):
        assert data[at : at + 6] == b"070701", at
        fields = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name = data[at + 110 : at + 109 + fields[11]].decode()
        body = (at + 110 + fields[11] + 3) // 4 * 4
        found.append((name, fields[1], bytes(data[body : body + fields[6]])))
        at = (body + fields[6] + 3) // 4 * 4
    return found


class Archives(unittest.TestCase):
    def test_folders_come_before_what_is_in_them_and_once(self):
        archive = initramfs.Archive()
        archive.file("a/b/c", b"text", 0o755)
        archive.file("a/b/d", b"")
        archive.link("e", "a/b/c")
        found = entries(archive.finish())
        self.assertEqual([name for name, _, _ in found], ["a", "a/b", "a/b/c", "a/b/d", "e", "TRAILER!!!"])
        self.assertEqual(found[2][1:], (0o100755, b"text"))
        self.assertEqual(found[4][1:], (0o120777, b"a/b/c"))

    def test_the_text_is_the_same_every_time(self):
        self.assertEqual(initramfs.text(), initramfs.text())
        self.assertEqual(len(initramfs.text().split()), initramfs.WORDS)


class Topologies(unittest.TestCase):
    def test_network_cards_come_before_host_bridges(self):
        words = topology.machine_words(1, Machine(link=True, windows=[Window("1G", [Device("256M")])]))
        kinds = [word.split(",")[0] for word in words]
        self.assertLess(kinds.index("virtio-net-pci"), kinds.index("pxb-cxl"))
        self.assertIn("cxl-fmw.0.targets.0=cxl.0,cxl-fmw.0.size=1G", words)

    def test_heads_share_a_file_and_have_serial_numbers_of_their_own(self):
        head = Device("256M", file="pool.mem", offset="512M")
        (one, front), (other, back) = (topology.device_words(i, 0, head) for i in (0, 1))
        self.assertEqual((one["mem-path"], one["offset"]), (other["mem-path"], other["offset"]))
        self.assertEqual(one["offset"], 512 << 20)
        self.assertNotEqual(front["sn"], back["sn"])

    def test_all_windows_are_in_one_option(self):
        words = topology.cxl_words(0, Machine(windows=[Window("1G", []), Window("256M", [Device("256M")])]))
        self.assertEqual(sum("cxl-fmw" in word for word in words), 1)
        self.assertIn("cxl-fmw.1.targets.0=cxl.1,cxl-fmw.1.size=256M", words[-1])

    def test_a_device_that_is_not_plugged_leaves_its_port(self):
        words = " ".join(topology.cxl_words(0, Machine(windows=[Window("1G", [Device("256M", plugged=False)])])))
        self.assertIn("cxl-rp", words)
        self.assertNotIn("cxl-type3", words)

    def test_a_switch_has_a_port_for_each_device_and_takes_commands(self):
        switch = topology.Switch([Device("256M"), Device("256M", plugged=False)], serial=7)
        machine = Machine(windows=[Window("1G", [Device("128M"), switch, Device("64M")])])
        self.assertEqual([device.size for device in topology.devices_of(machine)], ["128M", "256M", "256M", "64M"])
        words = topology.cxl_words(0, machine)
        ports = [word.split(",")[:3] for word in words if word.startswith(("cxl-rp", "cxl-downstream"))]
        self.assertEqual(
            ports,
            [
                ["cxl-rp", "port=0", "bus=cxl.0"],
                ["cxl-rp", "port=65", "bus=cxl.0"],
                ["cxl-downstream", "port=0", "bus=us1"],
                ["cxl-downstream", "port=1", "bus=us1"],
                ["cxl-rp", "port=3", "bus=cxl.0"],
            ],
        )
        self.assertIn("cxl-switch-mailbox-cci,bus=sp1,addr=0.1,target=us1", words)
        self.assertEqual(sum(word.startswith("cxl-type3") for word in words), 3)

    def test_nodes_without_processors(self):
        words = topology.node_words(Machine(nodes=[Node("256M", "0-1"), Node("128M")], distances={(0, 1): 17}))
        self.assertIn("node,nodeid=1,memdev=ram1", words)
        self.assertFalse(topology.has_hmat(Machine(nodes=[Node("256M", "0-1"), Node("128M")])))
        self.assertIn("dist,src=0,dst=1,val=17", words)

    def test_what_the_firmware_states_of_nodes(self):
        nodes = [Node("256M", "0-1", latency=90, bandwidth="100G"), Node("128M", latency=250, bandwidth="20G")]
        words = topology.machine_words(0, Machine(nodes=nodes))
        self.assertIn("q35,hmat=on", words)
        self.assertIn("node,nodeid=1,memdev=ram1,initiator=0", words)
        entry = "hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access"
        self.assertIn(f"{entry}-latency,latency=250", words)
        self.assertIn(f"{entry}-bandwidth,bandwidth=20G", words)


class Modules(unittest.TestCase):
    def test_each_comes_after_what_it_needs(self):
        found = modules.Modules.__new__(modules.Modules)
        found.builtin, found.files = {"there"}, dict.fromkeys(["a", "b_c", "d"])
        found.contents = {
            "a": b"\0depends=b-c,there\0",
            "b_c": b"\0depends=\0softdep=pre: d\0softdep=post: algorithm\0",
            "d": b"\0depends=\0",
        }
        self.assertEqual(found.order(["a", "there", "d"]), ["d", "b_c", "a"])


class Tests(unittest.TestCase):
    def test_each_can_be_loaded_and_says_what_it_is(self):
        tests = runner.load_all()
        self.assertGreaterEqual(len(tests), 4)
        for test in tests:
            self.assertTrue(test.__doc__ and test.SECONDS <= 600, test.name)
            self.assertEqual(len(test.SCRIPTS), len(test.MACHINES), test.name)

    def test_a_failure_shows_the_end_of_the_output(self):
        module = runner.load_all()[0]
        test = runner.Test(module, b"", None)
        with tempfile.TemporaryDirectory() as folder:
            test.folder = pathlib.Path(folder)
            test.running = [types.SimpleNamespace(last_words=lambda: "Kernel panic")]
            left = Results({"status": b"3", "output.txt": b"first\nlast words"}, "console")
            with self.assertRaisesRegex(runner.VmError, "status 3:\n(.|\n)*last words"):
                test.judge([left])
            self.assertEqual((test.folder / "0-status").read_bytes(), b"3")
            with self.assertRaisesRegex(runner.VmError, "no status:\n *Kernel panic"):
                test.judge([Results({}, "console")])

    def test_a_machine_that_the_test_killed_owes_no_results(self):
        test = runner.Test(types.SimpleNamespace(name="any"), b"", None)
        test.killed.add(1)
        with tempfile.TemporaryDirectory() as folder:
            test.folder = pathlib.Path(folder)
            test.judge([Results({"status": b"0"}, "console"), Results({}, "console")])
            self.assertEqual([path.name for path in test.folder.iterdir()], ["0-status"])

    def waited(self, ends, began, seconds):
        """wait_all() for one machine that has ended, or has not, and whose script has begun, or has not."""
        running = Running.__new__(Running)
        running.index, running.killed, running.began = 0, False, began
        running.exit_fd = os.eventfd(int(ends))
        running.process = types.SimpleNamespace(wait=lambda: 0)
        running.note_cpu = lambda: None
        running.last_words = lambda: "Kernel panic"
        running.results = lambda: Results({}, "console")
        try:
            return wait_all([running], seconds)[0].status
        finally:
            os.close(running.exit_fd)

    def test_a_guest_that_does_not_come_to_its_script_is_the_emulators_fault(self):
        with self.assertRaisesRegex(EmulatorCrash, "ended before its script began: Kernel panic"):
            self.waited(ends=True, began=False, seconds=9)
        self.assertIsNone(self.waited(ends=True, began=True, seconds=9))  # no status: judge() calls it a failure
        with self.assertRaisesRegex(EmulatorCrash, "did not begin"):  # no time to boot in is left of its own limit
            self.waited(ends=False, began=False, seconds=0.05)
        with unittest.mock.patch("vmtest.machine.BOOT_SECONDS", 0.01):
            with self.assertRaisesRegex(EmulatorCrash, "did not begin its script: Kernel panic"):
                self.waited(ends=False, began=False, seconds=9)
            with self.assertRaisesRegex(VmError, "did not end in time: Kernel panic") as raised:
                self.waited(ends=False, began=True, seconds=0.05)
            self.assertNotIsInstance(raised.exception, EmulatorCrash)

    def tries(self, still, *errors):
        """How often it is run when it ends so, and everything stood still for so long each time."""
        test = runner.Test(types.SimpleNamespace(name="any", MACHINES=[], SECONDS=1), b"", None)
        clock, left = types.SimpleNamespace(seconds=0.0), list(errors)

        def attempt():
            clock.seconds += still
            return left.pop(0)

        test.attempt = attempt
        return len(errors) - len(left) if test.run(clock).error else f"passed, {len(left)} left"

    def test_what_failed_while_everything_stood_still_is_run_again(self):
        self.assertEqual(self.tries(40.0, "failed", ""), "passed, 0 left")
        self.assertEqual(self.tries(40.0, *["failed"] * 5), runner.BOOTS)
        self.assertEqual(self.tries(40.0, "", ""), "passed, 1 left")
        self.assertEqual(self.tries(0.0, "failed", ""), 1)

    def test_the_machine_that_failed_is_the_one_that_is_told_of(self):
        test = runner.Test(types.SimpleNamespace(name="any"), b"", None)
        with tempfile.TemporaryDirectory() as folder:
            test.folder = pathlib.Path(folder)
            with self.assertRaisesRegex(VmError, "machine 1 ended with status 4"):
                test.judge([None, Results({"status": b"4", "output.txt": b"it"}, "console")])

    def test_the_mirror_is_one(self):
        self.assertRegex(packages.mirror(), r"^(https?|file)://\S*/debian$")


    def test_what_they_run_is_built_for_them(self):
        paths = set(initramfs.PROGRAMS.values())
        for test in runner.load_all():
            paths |= set(getattr(test, "PROGRAMS", {}).values())
        wanted = {path.name for path in paths if BUILD in path.parents}
        wanted -= {"tidepool", "libtidepool-preload.so"}  # other names than those of their targets
        targets = set((HERE / "CMakeLists.txt").read_text(encoding="utf-8").replace("(", " ").replace(")", " ").split())
        for name in wanted:
            one = name.replace("-", "_")
            self.assertTrue({one, f"bench_{one}", f"vm_{one}"} & targets, name)

    def test_those_that_come_first_are_there(self):
        self.assertLessEqual(set(main.FIRST), {test.name for test in runner.load_all()})
        self.assertEqual([test.name for test in main.choose(None)][: len(main.FIRST)], main.FIRST)

    def test_turns_are_all_together_and_none_but_the_named_twice(self):
        named = ["two-machines", "cxl-region"]
        turns = [[test.name for test in main.choose(",".join(named), turn)] for turn in range(7, 7 + main.TURNS)]
        together = sorted(name for turn in turns for name in turn)
        everyone = {test.name for test in runner.load_all() if not getattr(test, "ALONE", False)}
        self.assertEqual(together, sorted([*everyone, *named * (main.TURNS - 1)]))
        for turn in turns:
            self.assertLess(len(turn), len(everyone) // 2)


class Order(unittest.TestCase):
    def began(self, slots, *tests):
        """In which order they begin; one ends when nothing more can begin."""
        waiting = [types.SimpleNamespace(name=name, slots=need, alone=alone) for name, need, alone in tests]
        plan, running, order = schedule.Schedule(waiting, slots, lambda: 0.0), [], []
        passed = types.SimpleNamespace(passed=True)
        while plan.waiting:
            while plan.next() is not None:
                running.append(plan.begin())
                order.append("+" + running[-1].name)
            order.append("-" + running[0].name)
            plan.end(running.pop(0), passed)
        return " ".join(order)

    def test_a_small_one_goes_before_a_large_one_that_has_no_room(self):
        self.assertEqual(self.began(2, ("a", 1, False), ("b", 2, False), ("c", 1, False)), "+a +c -a -c +b -b")

    def test_those_that_wait_share_a_processor(self):
        some = [(name, 0.625, False) for name in "abcd"]
        self.assertEqual(self.began(2, *some, ("e", 2, True)), "+a +b +c -a +d -b -c -d +e -e")

    def test_what_is_to_be_alone_is_alone_and_last(self):
        self.assertEqual(self.began(2, ("a", 1, True), ("b", 1, False), ("c", 5, False)), "+b -b +c -c +a -a")

    def test_all_are_run_and_their_ends_are_known(self):
        tests = [types.SimpleNamespace(name=str(n), slots=1 + n % 3, alone=n == 4) for n in range(9)]
        ended = schedule.Schedule(tests, 2, lambda: 0.0).run(lambda test: types.SimpleNamespace(passed=True, name=test.name))
        self.assertEqual(sorted(one.name for one in ended), [test.name for test in tests])
        self.assertEqual(ended[-1].name, "4")

    def test_a_standstill_is_noticed(self):
        times = iter([0.0, 1.1, 2.0, 43.0])
        seen = schedule.Standstill(lambda: next(times), lambda seconds: None)
        seen.look()
        self.assertEqual(seen.seconds, 0)
        seen.look()
        self.assertEqual(seen.seconds, 40)


class Kills(unittest.TestCase):
    """programs/kill_at_steps.cc, preloaded into a shell that writes into eight journals."""

    STEPS = [f"{word}.journal held" for word in ("one", "two", "three", "four", "five", "six", "seven", "eight")]

    def taken(self, **environment):
        """At which steps it is killed, until it gets through; and which it passed."""
        preload = next(path for name, path in programs.compiled().items() if name.endswith("kill_at_steps.so"))
        with tempfile.TemporaryDirectory() as above:
            folder = pathlib.Path(above) / "lab"  # the folder's name is in the steps'
            folder.mkdir()
            script = "".join(f'echo "0123456789abcdef held 1" >{step.split()[0]}\n' for step in self.STEPS)
            (folder / "always").write_text(f"wrote lab/{self.STEPS[5]}\n", encoding="utf-8")
            variables = {"LD_PRELOAD": str(preload), "STEPS": "steps", "STEPS_PASSED": "passed", **environment}
            for _ in range(2 * len(self.STEPS)):
                done = subprocess.run(["sh", "-c", script], cwd=folder, env=dict(os.environ, **variables), check=False)
                if done.returncode == 0:
                    break
            self.assertEqual(done.returncode, 0)
            files = [folder / name for name in ("steps", "passed")]
            lines = [file.read_text(encoding="utf-8").splitlines() if file.exists() else [] for file in files]
            return [[line.split("/", 1)[1] for line in one] for one in lines]

    def test_at_every_step_once(self):
        self.assertEqual(self.taken(), [self.STEPS, []])

    def test_shares_are_all_steps_together_and_none_twice(self):
        shares = [self.taken(STEP_SHARE=f"3:{seed}") for seed in (5, 6, 7)]
        self.assertEqual(sorted(step for taken, _ in shares for step in taken), sorted(self.STEPS))
        for taken, passed in shares:
            self.assertEqual(sorted(taken + passed), sorted(self.STEPS))
            self.assertTrue(len(taken) < len(self.STEPS))
        self.assertEqual(self.taken(STEP_SHARE="3:2"), shares[0])

    def test_those_that_are_named_are_always_taken(self):
        for seed in range(3):
            self.assertIn(self.STEPS[5], self.taken(STEP_SHARE=f"3:{seed}", STEPS_ALWAYS="always")[0])

    def test_the_short_form_alone_passes_any(self):
        self.assertEqual(form.steps(["sent GET /vN/regions"]) + form.writes(), "")
        form.SHORT = True
        try:
            self.assertIn(f"STEP_SHARE={form.SHARE}:", form.steps(["sent GET /vN/regions"]))
            self.assertIn(f"WRITES_STRIDE={form.SHARE} WRITES_FIRST=", form.writes())
        finally:
            form.SHORT = False


class FakeMachine:
    def __init__(self):
        self.plugged, self.bound_as = set(), {}

    def devices(self):
        return [Device("256M", plugged=False, serial=0x5001)]

    def plug(self, place):
        self.plugged.add(place)

    def unplug(self, place):
        self.plugged.discard(place)


class Switch(unittest.TestCase):
    def test_binds_a_device_to_one_host_at_a_time(self):
        machines = [FakeMachine(), FakeMachine()]
        hosts = {"node0": 0, "node1": 1, "manager": 0}

        def ask(*words):
            return runner.switch(machines, hosts, list(words))

        self.assertEqual(ask("show", "0x5001"), f"{256 << 20} -")
        for _ in range(2):
            self.assertEqual(ask("bind", "0x5001", "manager"), "ok")
        self.assertEqual(ask("show", "0x5001"), f"{256 << 20} manager")
        with self.assertRaises(VmError):
            ask("bind", "0x5001", "node1")
        for _ in range(2):
            self.assertEqual(ask("unbind", "0x5001"), "ok")
        ask("bind", "0x5001", "node1")
        self.assertEqual([len(one.plugged) for one in machines], [0, 1])
        with self.assertRaises(VmError):
            ask("show", "0x5002")


if __name__ == "__main__":
    unittest.main()
