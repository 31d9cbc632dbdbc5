# SPDX-License-Identifier: Apache-2.0
"""Unit tests of bench/harness: no program is run, no swap touched."""

import gzip
import os
import pathlib
import tempfile
import unittest
import unittest.mock

from harness import corpus, demo, gups, inside, main, paired, programs, tables
from harness.places import BenchError, KilledError
from harness.running import Run


def fake_run(seconds, peak=0):
    return Run({"seconds": seconds, "peak_anon_bytes": peak, "major_faults": 0}, "", "")


class Corpus(unittest.TestCase):
    def test_words_of_files_in_sorted_order(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "b.rst").write_bytes(b"Second  FILE_name, 42!\n\n...\n")
            (root / "a.txt.gz").write_bytes(gzip.compress(b"The First's file-name\n"))
            (root / "c.png").write_bytes(b"not text\n")
            self.assertEqual(
                list(corpus.lines(root)), [b"the first's file-name\n", b"second file_name\n"]
            )


class Paired(unittest.TestCase):
    def test_order_is_rotated_and_everything_runs_each_round(self):
        order = []
        ways = ["plain", "direct", "remote"]
        results, errors = paired.rounds(
            "t", ways, 3, lambda way: (order.append(way), fake_run(1))[1]
        )
        self.assertEqual(
            order,
            ["plain", "direct", "remote", "direct", "remote", "plain", "remote", "plain", "direct"],
        )
        self.assertEqual({way: len(runs) for way, runs in results.items()}, dict.fromkeys(ways, 3))
        self.assertFalse(errors)

    def test_a_failing_way_is_reported_and_the_others_go_on(self):
        def one(way):
            if way == "direct":
                raise BenchError("broken")
            return fake_run(1)

        results, errors = paired.rounds("t", ["plain", "direct"], 2, one)
        self.assertEqual(errors, {"direct": "broken"})
        self.assertEqual(len(results["plain"]), 2)
        printed, data = paired.report("t", results, errors, None, {})
        self.assertIn("failed", printed)
        self.assertEqual(data["ways"]["direct"]["error"], "broken")

    def test_ratios_are_taken_inside_a_round(self):
        results = {"plain": [fake_run(1), fake_run(10)], "direct": [fake_run(1.5), fake_run(11)]}
        self.assertEqual(paired.ratios(results, "direct"), [1.5, 1.1])

    def test_a_peak_over_the_allowance_is_shown(self):
        budget = 100 * 2**20
        self.assertEqual(paired.allowance(budget), 121 * 2**20)
        for peak, word in ((121 * 2**20, False), (121 * 2**20 + 1, True)):
            results = {"plain": [fake_run(1)], "direct": [fake_run(1, peak)]}
            printed, data = paired.report("t", results, {}, budget, {"direct": True})
            self.assertEqual("OVER" in printed, word)
            self.assertEqual(data["ways"]["direct"]["within_budget"], not word)

    def under_zram(self, kills):
        """A run of the zram peer that the kernel kills `kills` times before it lets it end."""
        tries = []

        def go(_, cgroup):
            tries.append(cgroup)
            if len(tries) <= kills:
                raise KilledError("killed")
            return fake_run(1)

        peer = unittest.mock.MagicMock()
        peer.return_value.__enter__.return_value.figures.return_value = {"limit_bytes": 1}
        with unittest.mock.patch.dict(paired.SWAPS, zram=peer):
            return paired._under_swap("zram", go, ["prog"], 1)

    def test_a_peer_that_was_killed_is_repeated_and_that_is_told(self):
        run = self.under_zram(2)
        self.assertEqual(run.extra["zram"], {"limit_bytes": 1, "killed_before": 2})
        printed, _ = paired.report("t", {"plain": [fake_run(1)], "zram": [run]}, {}, None, {})
        self.assertIn("zram: 2 runs more were killed", printed)
        printed, _ = paired.report(
            "t", {"plain": [fake_run(1)], "zram": [self.under_zram(0)]}, {}, None, {}
        )
        self.assertNotIn("killed", printed)

    def test_zrams_pool_counts_and_equal_takes_as_much(self):
        run = fake_run(1)
        run.extra["zram"] = {"compressed_peak_bytes": 2 * 2**20, "local_bytes": 5 * 2**20}
        printed, _ = paired.report("t", {"plain": [fake_run(1)], "zram": [run]}, {}, 3 * 2**20, {})
        self.assertIn("zram: its pool took 2 MiB beside the limit, 5 MiB of local memory in all", printed)
        asked = []

        def start(words, **_):
            asked.append(words)
            return unittest.mock.MagicMock()

        with unittest.mock.patch.multiple(
            paired, Started=start, _under_swap=lambda *_: run
        ), unittest.mock.patch.dict(paired.SERVERS, equal=unittest.mock.MagicMock()):
            with self.assertRaises(BenchError):
                paired.run_way("equal", ["prog"], 3 * 2**20, stats_path="stats")
            paired.run_way("zram", ["prog"], 3 * 2**20)
            paired.run_way("equal", ["prog"], 3 * 2**20, stats_path="stats")
        self.assertIn(str(5 * 2**20), asked[0])

    def test_equal_needs_zram(self):
        nowhere = unittest.mock.MagicMock()
        nowhere.why_not.return_value = "no such thing"
        with unittest.mock.patch.dict(paired.SWAPS, zram=nowhere, nbd=nowhere):
            self.assertEqual(paired.choose(None, paired.ALL_WAYS), ["plain", "direct", "remote"])

    def test_a_peer_that_is_always_killed_has_no_figure(self):
        with self.assertRaises(KilledError):
            self.under_zram(paired.SWAP_TRIES)

    def test_an_unknown_way_is_refused(self):
        with self.assertRaises(BenchError):
            paired.choose(["plain", "nonsense"])
        with self.assertRaises(BenchError):
            paired.choose(["plain", "nonsense+foretell:auto"])

    def test_a_way_may_have_settings_and_a_build_of_its_own(self):
        way = "remote+foretell:auto+dedup:off@../old"
        self.assertEqual(paired.choose(["remote", way, "plain"]), ["plain", "remote", way])
        self.assertEqual(
            paired.label(way), "tidepool, memory server, foretell:auto, dedup:off, of ../old"
        )
        words = []
        with unittest.mock.patch.dict(paired.SERVERS, remote=unittest.mock.MagicMock()), unittest.mock.patch.object(
            paired, "tidepool_command", lambda *given: words.extend(given) or []
        ), unittest.mock.patch.object(paired, "Started") as started:
            started.return_value.__enter__.return_value.finish.return_value = fake_run(1)
            paired.run_way(way, ["prog"], 7, stats_path="stats", conf="pins:never")
        self.assertEqual(words[4:], ["pins:never,foretell:auto,dedup:off", pathlib.Path("../old")])

    def test_the_programs_own_count_is_shown(self):
        run = fake_run(1)
        run.stats = {
            "sampling_cpu_ratio": 0.004,
            "wasted_migrations": 3,
        }
        printed, _ = paired.report("t", {"plain": [fake_run(1)], "direct": [run]}, {}, None, {})
        self.assertIn(
            "direct, by its own count: sampling 0.40 % of a core, 3 wasted migrations",
            printed,
        )
        self.assertNotIn("plain, by", printed)


class Programs(unittest.TestCase):
    def measured(self, results):
        """measure_one() where the plain run prints "a" and each way what `results` says."""

        def one(_, _program, way, budget):
            run = fake_run({"plain": 2, "direct": 3, "remote": 5}[way], 100)
            run.watch["peak_rss_bytes"] = 400
            run.extra["result"] = results[way] if budget else "a"
            return run

        with unittest.mock.patch.object(programs, "one_run", one):
            return programs.measure_one("sort", programs.PROGRAMS["sort"], 2, ["plain", "direct", "remote"])

    def test_a_row_has_a_ratio_and_a_peak_for_each_way(self):
        row, data = self.measured({"plain": "a", "direct": "a", "remote": "a"})
        self.assertEqual(row[2:], ["2.0 s", "1.50x", "0 MiB", "2.50x", "0 MiB"])
        self.assertEqual(data["budget_bytes"], 100)
        self.assertFalse(main.failures_in(data))

    def test_another_result_is_a_failure(self):
        row, data = self.measured({"plain": "a", "direct": "a", "remote": "b"})
        self.assertIn("DIFFERENT", row)
        self.assertTrue(main.failures_in(data))

    def test_an_unknown_program_is_refused(self):
        with self.assertRaises(BenchError):
            programs.chosen(["sort", "nonsense"])


class Demo(unittest.TestCase):
    def test_each_broken_promise_is_named(self):
        def runs(model, peak):
            made = {}
            for way in demo.WAYS:
                made[way] = fake_run(1, 100)
                made[way].extra["model"] = "m"
            made["remote"].extra["model"] = model
            made["direct"].watch["peak_anon_bytes"] = peak
            return made

        budget = 2**20
        self.assertTrue(all(kept for _, kept in demo.verdict(runs("m", 100), budget)))
        self.assertEqual(
            [kept for _, kept in demo.verdict(runs("other", 100), budget)],
            [True, True, False, True],
        )
        self.assertEqual(
            [kept for _, kept in demo.verdict(runs("m", 2**30), budget)],
            [True, False, True, True],
        )


class Gups(unittest.TestCase):
    def test_oracle_fills_hot_first(self):
        # 1000 pages, 100 hot, 90 % of the accesses go there.
        self.assertAlmostEqual(gups.oracle_share(50, 1000, 100), 0.45)
        self.assertAlmostEqual(gups.oracle_share(100, 1000, 100), 0.9)
        self.assertAlmostEqual(gups.oracle_share(550, 1000, 100), 0.95)
        self.assertAlmostEqual(gups.oracle_share(5000, 1000, 100), 1.0)

    def test_recovery_is_measured_from_the_change(self):
        points = [(t / 4, 0.8) for t in range(40)] + [
            (10 + t / 4, min(0.8, 0.1 * t)) for t in range(40)
        ]
        steady, seconds = gups.recovery(points, change=10.0)
        self.assertAlmostEqual(steady, 0.8)
        self.assertAlmostEqual(seconds, 2.0)

    def test_no_recovery_is_none(self):
        points = [(t / 4, 0.8) for t in range(40)] + [(10 + t / 4, 0.1) for t in range(40)]
        self.assertIsNone(gups.recovery(points, change=10.0)[1])

    def test_sampling_is_what_its_thread_used_beyond_moving_and_idling(self):
        def runs(inside):
            run = fake_run(1)
            run.extra["inside"] = inside
            return [run]

        told = {"sampling_cpu_own": 0.01, "moving_cpu": 0.05, "sampler_thread_cpu": 0.07}
        cost = gups.cost_of_sampling(runs(told), runs({"sampler_thread_cpu": 0.015}))
        self.assertAlmostEqual(cost["sampling_cpu_getrusage"], 0.005)
        self.assertIn("getrusage 0.50%", gups.sampling_note("direct", cost)[0])
        self.assertNotIn("sampling_cpu_getrusage", gups.cost_of_sampling(runs(told), None))
        self.assertIsNone(gups.cost_of_sampling(runs({}), None))


class Inside(unittest.TestCase):
    def test_anonymous_memory_is_sorted_by_whose_it_is(self):
        smaps = """\
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Anonymous:            12 kB
VmFlags: rd wr mr mw me nr
7f0000100000-7f0000200000 rw-p 00000000 00:00 0
Anonymous:           900 kB
VmFlags: rd wr mr mw me um uw nr
7f0000200000-7f0000300000 rw-p 00003000 fe:00 4711                       /usr/lib/libc.so.6
Anonymous:             8 kB
VmFlags: rd wr mr mw me ac
7ffe00000000-7ffe00100000 rw-p 00000000 00:00 0                          [stack]
Anonymous:            40 kB
VmFlags: rd wr mr mw me gd ac
"""
        self.assertEqual(inside.outside(smaps.splitlines()), (12 * 1024, 48 * 1024))

    def test_a_threads_time_is_found_by_its_name(self):
        self.assertIsNone(inside.thread_seconds(os.getpid(), "no such thread"))
        with open("/proc/self/comm", encoding="utf-8") as file:
            name = file.read().strip()
        self.assertGreaterEqual(inside.thread_seconds(os.getpid(), name), 0)


class Tables(unittest.TestCase):
    def test_columns_line_up(self):
        text = tables.table("title", ["", "a"], [["row", "1"], ["longer row", "22"]])
        widths = {len(line) for line in text.splitlines()[2:]}
        self.assertEqual(len(widths), 1)

    def test_geomean(self):
        self.assertAlmostEqual(tables.geomean([1, 4]), 2)


class Failures(unittest.TestCase):
    def test_found_at_any_depth_but_not_in_a_programs_own_statistics(self):
        self.assertFalse(
            main.failures_in({"ways": {"direct": {"same_result": True, "within_budget": None}}})
        )
        self.assertFalse(
            main.failures_in({"runs": [{"stats": {"errors": ["lost a server"]}}], "errors": {}})
        )
        for broken in (
            {"error": "x"},
            {"errors": {"direct": "x"}},
            {"same_result": False},
            {"within_budget": False},
        ):
            self.assertTrue(main.failures_in({"a": [{"b": broken}]}))


class Arguments(unittest.TestCase):
    def test_every_benchmark_has_a_module_with_measure(self):
        import importlib

        for name in main.BENCHMARKS:
            module = importlib.import_module("harness." + main.MODULES.get(name, name))
            self.assertTrue(callable(module.measure), name)


if __name__ == "__main__":
    unittest.main()
