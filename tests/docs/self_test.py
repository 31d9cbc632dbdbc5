#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the document tests: what they must find, they find."""

import pathlib
import tempfile
import time
import unittest

import check_docs
import run_blocks

HEADER = """
inline constexpr uint8_t kTransitions[kPageStates] = {
    /* kEmpty    */ detail::to(PageState::kLocal),
    /* kLocal    */ detail::to(PageState::kEmpty) |
        detail::to(PageState::kFar),
};
"""


class Folder(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.root = pathlib.Path(kept.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


class Blocks(Folder):
    def test_only_marked_blocks_run(self):
        path = self.write("a.md", "```sh\nexit 1\n```\n```sh run\necho yes\n```\n```text\nexit 2\n```\n")
        script = run_blocks.script_of(path)
        self.assertIn("echo yes", script)
        self.assertNotIn("exit", script)

    def test_longer_fences_hold_shorter_ones(self):
        found = list(run_blocks.blocks("````text\n```sh run\nfalse\n```\n````\n"))
        self.assertEqual([info for _, info, _ in found], ["text"])

    def test_a_block_without_end_is_an_error(self):
        with self.assertRaises(ValueError):
            list(run_blocks.blocks("```sh run\ntrue\n"))

    def test_a_failing_block_is_named(self):
        path = self.write("a.md", "\n```sh run\ntrue\n```\n```sh run\nfalse\ntrue\n```\n")
        status, output = run_blocks.run(run_blocks.script_of(path), self.root, 20)
        self.assertEqual((status, output), (1, "== a.md:2\n== a.md:5\n"))

    def test_blocks_share_a_shell(self):
        path = self.write("a.md", "```sh run\nx=1\n```\n```sh run\necho $x\n```\n")
        self.assertEqual(run_blocks.run(run_blocks.script_of(path), self.root, 20)[0], 0)

    def test_what_hangs_or_is_left_running_is_ended(self):
        status, output = run_blocks.run("sleep 600 & echo $!; wait", self.root, 1)
        self.assertIsNone(status)
        # A killed process has no executable any more, once the kernel has come round to it.
        while pathlib.Path(f"/proc/{output.strip()}/exe").exists():
            time.sleep(0.01)

    def test_files_without_blocks_are_no_success(self):
        path = self.write("a.md", "text\n")
        self.assertEqual(run_blocks.main(["--bin", str(self.root), str(path)]), 1)


class Links(Folder):
    def test_files_and_anchors_are_looked_up(self):
        self.write("b.md", "# A `b` C\n## Two, three\n```\n# not a heading\n```\n")
        path = self.write(
            "a.md",
            "[1](b.md) [2](b.md#a-b-c) [3](b.md#two-three) [4](https://example.org/no)\n"
            "[5](c.md) [6](b.md#not-a-heading) [7](#nothing)\n```\n[8](d.md)\n```\n",
        )
        found = list(check_docs.check_links(path))
        self.assertEqual(len(found), 3, found)
        for wrong, line in zip(("c.md", "#not-a-heading", "#nothing"), found):
            self.assertIn(wrong, line)
            self.assertIn("a.md:2:", line)

    def test_repeated_headings_are_numbered(self):
        path = self.write("a.md", "# X\n# X\n[1](#x) [2](#x-1) [3](#x-2)\n")
        self.assertEqual(len(list(check_docs.check_links(path))), 1)

    def test_source_paths_must_exist(self):
        self.write("runtime/a.h", "")
        path = self.write("a.md", "`runtime/a.h` `runtime/b.h` `runtime/` `a word`\n")
        found = list(check_docs.check_paths(self.root, path))
        self.assertEqual(len(found), 1, found)
        self.assertIn("runtime/b.h", found[0])


class PageStates(Folder):
    def check(self, document):
        self.write("runtime/space/page_state.h", HEADER)
        self.write("docs/life-of-a-page.md", document)
        return list(check_docs.check_page_states(self.root))

    def test_the_same_tables_agree(self):
        rows = "| `kEmpty` | `kLocal` | x |\n| `kLocal` | `kEmpty` | x |\n| `kLocal` | `kFar` | x |\n"
        self.assertEqual(self.check(rows), [])

    def test_what_is_missing_or_too_much_is_found(self):
        found = self.check("| `kEmpty` | `kLocal` | x |\n| `kLocal` | `kFar` | x |\n| `kFar` | `kLocal` | x |\n")
        self.assertEqual(len(found), 2, found)
        self.assertIn("only the document allows kFar -> kLocal", found[0])
        self.assertIn("only the code allows kLocal -> kEmpty", found[1])


class Steps(Folder):
    def test_functions_must_be_in_their_files(self):
        self.write("runtime/a.cc", "int A::here() {}\n")
        path = self.write("a.md", "| one | `A::here()` | `runtime/a.cc` |\n| two | `A::gone()` | `runtime/a.cc` |\n")
        found = list(check_docs.check_steps(self.root, path))
        self.assertEqual(len(found), 1, found)
        self.assertIn("gone", found[0])


class Messages(Folder):
    def test_messages_must_be_those_of_the_source(self):
        self.write("runtime/a.cc", 'fail("the tier %s is "\n     "full: give %zu more");')
        self.write("docs/troubleshooting.md", "| `the tier ... is full: give ...` | x |\n| `it is broken` | x |\n")
        found = list(check_docs.check_messages(self.root))
        self.assertEqual(len(found), 1, found)
        self.assertIn("it is broken", found[0])


if __name__ == "__main__":
    unittest.main()
