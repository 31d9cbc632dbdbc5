#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of mutate.py: which mutants it makes of a text, and what it says of two that are built. BUILD is the folder."""
import argparse
import subprocess
import sys
import tempfile
import unittest

import mutate

TOY = '''// if (comment) { comment = true; }
int Toy::toy(int a, const char* said) {
  TP_CHECK(a > 0);
  const int twice = a + a;
  if (a < 3 && said != nullptr) return twice;
  while (more()) {
    seen_[a] = "a == b";
    ++count_;
  }
  for (int i = 0; i < a; ++i) visit(i);
  if (a == 7) break;
  count(core_.stats->pages, a - 1);
  return open_ == true;
}
'''
EXPECTED = [
    "const int twice = a[ + -> - ]a;",
    "if ([a < 3 && said != nullptr -> !(a < 3 && said != nullptr)]) return twice;",
    "if (a[ < -> <= ]3 && said != nullptr) return twice;",
    "if (a < 3[ && -> || ]said != nullptr) return twice;",
    "if (a < 3 && said[ != -> == ]nullptr) return twice;",
    "while ([more() -> !(more())]) {",
    '[seen_[a] = "a == b" -> nothing];',
    "[++count_ -> nothing];",
    "for (int i = 0; i[ < -> <= ]a; ++i) visit(i);",
    "for (int i = 0; i < a; ++i) [visit(i) -> nothing];",
    "if ([a == 7 -> !(a == 7)]) break;",
    "if (a[ == -> != ]7) break;",
    "if (a == 7) [break -> nothing];",
    "return open_[ == -> != ]true;",
    "return open_ == [true -> false];",
]


class Mutate(unittest.TestCase):
    build = None

    def run_tool(self, text, *arguments):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as table:
            table.write(text)
            table.flush()
            return subprocess.run([mutate.__file__, "--build", self.build, "--list", table.name, *arguments],
                                  capture_output=True, text=True)

    def test_makes_one_change_of_code_that_says_something(self):
        self.assertEqual([mutant.shown for mutant in mutate.mutants_of("toy.cc", TOY)], EXPECTED)

    def test_tells_what_was_killed_from_what_is_the_same(self):
        source = "runtime/policy/stream.cc"
        shown = [mutant.shown for mutant in mutate.mutants_of(source, (mutate.ROOT / source).read_text())]
        table = f"class stream | {source} | policy_stream_test\n"
        table += "".join(f"same {source} | {mutant} | not asked\n" for mutant in shown if "confirm(" not in mutant)
        ran = self.run_tool(table, "--verbose", "--least", "99", "stream")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertRegex(ran.stdout, r"killed by policy_stream_test: StreamTracker\.\w+: .*confirm\(")
        self.assertRegex(ran.stdout, r"stream: (\d+) of \1 killed, 100 %; \d+ do the same, 0 do not compile")

    def test_a_table_with_a_mistake_is_named(self):
        ran = self.run_tool("class half\n")
        self.assertEqual(ran.returncode, 2)
        self.assertIn(":1: neither 'class NAME", ran.stderr)

    def test_a_class_without_its_test_program_is_named(self):
        ran = self.run_tool("class stream | runtime/policy/stream.cc | no_such_test\n")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("has no test program no_such_test", ran.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    Mutate.build = parser.parse_args().build
    unittest.main(argv=sys.argv[:1])
