#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Whatever it is told, it ends with a code and a reason; help, completion, man page and reference.

    FABRICMGR=build/release/bin/fabricmgr usage_test.py [unittest arguments]
"""

import json
import pathlib
import random
import subprocess
import tempfile
import unittest

from fabric import CONFLICT, DONE, FAILED, NOT_FOUND, PROGRAM, REFUSED, UNREACHABLE, USAGE, FabricTest


class UsageTest(FabricTest):
    def test_what_is_wrong_is_said_with_its_code(self):
        self.furnish()
        for code, words, says in [
            (USAGE, ["region", "assign"], "--host"),
            (USAGE, ["region", "assign", "--host", "node1", "--size", "-1"], "size"),
            (USAGE, ["region", "assign", "--host", "node1", "--size", "99999999999G"], "size"),
            (USAGE, ["region", "assign", "--host", "node1", "--size", "2M", "--zzz"], "zzz"),
            (USAGE, ["region", "frobnicate"], "frobnicate"),
            (USAGE, ["region"], "subcommand"),
            (USAGE, ["region", "list", "--state", "happy"], "happy"),
            (USAGE, ["region", "show", "x"], "not the number"),
            (USAGE, ["host", "add", "a/b"], "name"),
            (USAGE, ["host", "add", "n", "--lease", "soon"], "length of time"),
            (USAGE, ["region", "assign", "--host", "node1", "--size", "2M", "--plan", "/nowhere"], "JSON"),
            (USAGE, ["status", "--fabric", "ftp://x"], "unix:PATH"),
            (NOT_FOUND, ["host", "show", "nobody"], "nobody"),
            (NOT_FOUND, ["region", "show", "999"], "999"),
            (NOT_FOUND, ["audit", "show", "999"], "no record 999"),
            (NOT_FOUND, ["event", "show", "999"], "index 999"),
            (USAGE, ["event", "show", "0"], "from 1"),
            (USAGE, ["audit", "show", "x"], "whole number"),
            (REFUSED, ["region", "assign", "--host", "node1", "--size", "1T"], ""),
            (USAGE, ["region", "assign", "--host", "node1", "--size", "25%"], "this machine's memory"),
            (REFUSED, ["pool", "remove", "cxl"], "device"),
            (CONFLICT, ["pool", "add", "cxl", "--class", "cxl"], "cxl"),
            (CONFLICT, ["device", "cordon", "dev0", "--if-match", "1"], "modified"),
            (UNREACHABLE, ["status", "--fabric", "unix:/nowhere/sock"], "TIDEPOOL_FABRIC"),
            (FAILED, ["device", "add", "d", "--pool", "cxl", "--address", "/nowhere/x"], "/nowhere/x"),
        ]:
            with self.subTest(words=words):
                done = self.run_program(*words, code=code)
                self.assertIn(says, done.stderr)
                self.assertEqual(done.stdout, "")

    def test_help_of_the_memory_server_names_its_transports(self):
        text = subprocess.run([PROGRAM, "memserver", "--help"], capture_output=True, timeout=20).stdout
        self.assertIn(b"auto|tcp|verbs", text)
        self.assertNotIn(b"->", text)
        text.decode()

    def test_whatever_it_is_told_it_ends_with_a_code_and_a_reason(self):
        self.furnish()
        region = str(self.ask("region", "assign", "--host", "node1", "--size", "2M")["id"])
        generator = random.Random(17)
        verbs = ["list", "show", "add", "remove", "cordon", "uncordon", "resume", "fence", "assign", "resize"]
        verbs += ["release", "transfer", "evidence", "ok-to-remove", "verify"]
        flags = ["--host", "--size", "--class", "--pool", "--label", "--shape", "--max-devices", "--if-match", "--lease"]
        flags += ["--address", "--capacity", "--granularity", "--heads", "--domain", "--state", "--cursor", "--limit"]
        flags += ["--force", "--json", "--contiguous", "--plan", "--timeout", "--idempotency-key", "--fabric", "-", "--"]
        values = ["node1", "cxl", "dev0", region, "2M", "", "-1", "0", "1e9", "99999999999999999999", "a/b", "../x", "%s%n"]
        values += ["\n", "\x1b[2J", "\u00e4", b"\xff\xfe", "x" * 3000, "/dev/null", str(self.folder), "unix:", "://"]
        before = self.ask("status")["index"]
        for _ in range(200):
            words = [generator.choice(["pool", "device", "host", "region", "operation", "event", "audit", "plan"])]
            words += [generator.choice(verbs)] if words != ["plan"] else []
            for _ in range(generator.randrange(5)):
                words.append(generator.choice(flags if generator.random() < 0.5 else values))
            if words[0] not in ("plan", "operation", "event", "audit"):
                words.insert(2, "--dry-run")
            with self.subTest(words=words):
                done = subprocess.run(
                    [PROGRAM, *words], env=self.environment(), capture_output=True, errors="replace", timeout=60
                )
                self.assertIn(done.returncode, range(8), done.stderr)
                if done.returncode != DONE:
                    self.assertRegex(done.stderr, r"\S")
                    self.assertNotIn("terminate called", done.stderr)
        self.assertEqual(self.ask("status")["index"], before)

    def test_discover_needs_no_manager_and_says_that_there_is_no_switch(self):
        classes = [one.read_text() for one in pathlib.Path("/sys/bus/pci/devices").glob("*/class")]
        if any(one.startswith("0x0c0b") for one in classes):
            return  # a machine with a switch: tests/vm/tests/cxl_switch.py
        done = self.run_program("device", "discover", "--json", TIDEPOOL_FABRIC="unix:/nowhere")
        self.assertEqual(json.loads(done.stdout), {"switches": []})
        self.assertRegex(done.stderr, r"^fabricmgr device discover: no CXL switch [^\n]*; run it where [^\n]*\n$")
        self.assertEqual(self.run_program("device", "discover").stdout, "")


class DocumentsTest(unittest.TestCase):
    def generate(self, what):
        return subprocess.run([PROGRAM, "--generate", what], capture_output=True, text=True, check=True).stdout

    def complete(self, *words):
        script = (
            self.generate("bash")
            + f"COMP_WORDS=(fabricmgr {' '.join(repr(word) for word in words)}); COMP_CWORD={len(words)}; _fabricmgr; "
            + 'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        return set(subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split())

    def test_the_reference_is_up_to_date(self):
        committed = pathlib.Path(__file__).parents[3] / "docs/fabricmgr-reference.md"
        self.assertEqual(
            committed.read_text(),
            self.generate("markdown"),
            "write it again: build/release/bin/fabricmgr --generate markdown > docs/fabricmgr-reference.md",
        )

    def test_completion_offers_nouns_verbs_and_flags(self):
        self.assertLessEqual({"serve", "memserver", "ca", "status", "region", "watch"}, self.complete(""))
        self.assertEqual(self.complete("reg"), {"region"})
        self.assertLessEqual({"assign", "list", "release", "evidence"}, self.complete("region", ""))
        self.assertLessEqual({"--host", "--size", "--dry-run", "--json"}, self.complete("region", "assign", "--"))
        self.assertEqual(self.complete("region", "release", "7", "--fo"), {"--force"})

    def test_the_man_page_is_clean(self):
        page = self.generate("man")
        with tempfile.NamedTemporaryFile("w", suffix=".1") as file:
            file.write(page)
            file.flush()
            lint = subprocess.run(
                ["mandoc", "-T", "lint", "-W", "style", file.name], capture_output=True, text=True
            )
        self.assertEqual(lint.stdout + lint.stderr, "")


if __name__ == "__main__":
    unittest.main()
