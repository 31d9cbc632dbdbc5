# SPDX-License-Identifier: Apache-2.0
"""tidepool.Table over NumPy arrays: results against a model, and the same bits in every tier."""

import errno
import os
import resource
import threading
import unittest

import numpy

import tidepool
from places import TIERS, Everywhere, MemoryServer, batch, pooled

ROWS, DIM = 4000, 12


class Tables(unittest.TestCase):
    def setUp(self):
        self.places = Everywhere()
        self.addCleanup(self.places.close)
        self.space = self.places.space

    def table(self, tier=0, **options):
        settings = {"init": ("uniform", -1, 1, 5), "dram": "64K", "tier": tier, **options}
        return tidepool.Table(self.space, "test", settings.pop("rows", ROWS), DIM, **settings)

    def in_every_tier(self, **options):
        return [self.table(tier, **options) for tier in TIERS.values()]

    def same_rows(self, tables):
        ids = numpy.arange(ROWS)
        rows = [table.read(ids) for table in tables]
        for other in rows[1:]:
            numpy.testing.assert_array_equal(rows[0], other)

    def test_bags_are_those_of_a_model(self):
        random = numpy.random.default_rng(1)
        for tier, table in zip(TIERS, self.in_every_tier()):
            rows = table.read(numpy.arange(ROWS))
            self.assertTrue((rows >= -1).all() and (rows < 1).all())
            for mode in ("sum", "mean"):
                ids, offsets = batch(random, ROWS, 200, 9)
                weights = random.random(len(ids), dtype=numpy.float32)
                for each in (None, weights):
                    with self.subTest(tier=tier, mode=mode, weighted=each is not None):
                        numpy.testing.assert_allclose(
                            table.bag(ids, offsets, each, mode),
                            pooled(rows, ids, offsets, each, mode),
                            atol=2e-6,
                        )

    def test_more_tables_in_a_memory_server_than_there_are_descriptors(self):
        first = self.table(TIERS["remote"])
        _, most = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, most))
        tables = [tidepool.Table(self.space, "small", 10, 16, tier=TIERS["remote"]) for _ in range(40)]
        ids, offsets = numpy.arange(10), numpy.array([0, 10])
        for pooled_rows in tidepool.bags([(table, ids, offsets) for table in [first, *tables]]):
            self.assertEqual(pooled_rows.shape[0], 1)

    def test_a_table_without_a_descriptor_for_its_connection(self):
        self.table(TIERS["remote"])  # the tier is open, but a second connection is not
        _, most = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
        with self.assertRaisesRegex(tidepool.InputOutput, "file descriptors.*ulimit -n") as caught:
            tidepool.Table(self.space, "small", 10, 16, tier=TIERS["remote"])
        self.assertIsInstance(caught.exception, OSError)
        self.assertNotIsInstance(caught.exception, ConnectionError)
        self.assertEqual(caught.exception.os_error, errno.EMFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        self.table(TIERS["remote"])

    def test_the_same_bits_in_every_tier_for_every_type_and_optimizer(self):
        for dtype in ("float32", "float16", "bfloat16", "int8"):
            for optimizer in ("sgd", "momentum", "adagrad", "rowwise_adagrad", "adam"):
                with self.subTest(dtype=dtype, optimizer=optimizer):
                    random = numpy.random.default_rng(2)
                    tables = self.in_every_tier(dtype=dtype, optimizer=optimizer, lr=0.1)
                    for _ in range(3):
                        ids, offsets = batch(random, ROWS, 100, 9)
                        gradients = random.standard_normal((100, DIM), dtype=numpy.float32)
                        results = tidepool.bags([(table, ids, offsets) for table in tables])
                        for other in results[1:]:
                            self.assertEqual(results[0].tobytes(), other.tobytes())
                        tidepool.updates([(table, ids, offsets, gradients) for table in tables])
                    self.same_rows(tables)
                    for table in tables:
                        table.close()

    def test_sgd_takes_one_step_a_row(self):
        for table in self.in_every_tier(lr=0.5):
            before = table.read(numpy.array([7, 8]))
            gradients = numpy.ones((2, DIM), numpy.float32)
            table.update(numpy.array([7, 7, 8]), numpy.array([0, 2, 3]), gradients)
            after = table.read(numpy.array([7, 8]))
            numpy.testing.assert_allclose(before - after, [[1.0] * DIM, [0.5] * DIM], atol=1e-6)
            table.set_lr(0.0)
            table.update(numpy.array([7]), numpy.array([0, 1]), gradients[:1])
            numpy.testing.assert_array_equal(table.read(numpy.array([7])), after[:1])
            self.assertEqual(table.lr, 0.0)
            self.assertEqual(table.counts().steps, 2)

    def test_what_is_written_is_read(self):
        random = numpy.random.default_rng(3)
        for table in self.in_every_tier():
            ids = random.permutation(ROWS)[:1000]
            values = random.standard_normal((1000, DIM), dtype=numpy.float32)
            table.write(ids, values)
            numpy.testing.assert_array_equal(table.read(ids), values)
            out = numpy.empty((1000, DIM), numpy.float32)
            self.assertIs(table.read(ids, out=out), out)
            numpy.testing.assert_array_equal(out, values)

    def test_hashed_ids_come_into_being(self):
        for table in self.in_every_tier(ids="hashed", rows=100):
            self.assertEqual(len(table), 0)
            ids = numpy.array([-5, 2**62, -5, 17])
            first = table.bag(ids, numpy.array([0, 3, 4]))
            self.assertEqual(len(table), 3)
            rows = table.read(numpy.array([-5, 2**62, 17]))
            numpy.testing.assert_array_equal(first[0], rows[0] + rows[1] + rows[0])
            with self.assertRaises(tidepool.NotFound) as caught:
                table.read(numpy.array([18]))
            self.assertIsInstance(caught.exception, LookupError)
            with self.assertRaisesRegex(tidepool.NoSpace, "has 3 of the 100 rows .* such as -903,"):
                table.bag(numpy.arange(-1000, -900), numpy.array([0, 100]))
            self.assertEqual(len(table), 3)
            numpy.testing.assert_array_equal(table.known_ids(), [-5, 2**62, 17])
        with self.assertRaisesRegex(TypeError, "dense"):
            self.table().known_ids()

    def test_a_look_up_may_insert_nothing(self):
        offsets = numpy.arange(0, 201, 2)
        for table, twin in zip(
            self.in_every_tier(ids="hashed", rows=100, init=("normal", 0.0, 1.0, 3)),
            self.in_every_tier(ids="hashed", rows=300, init=("normal", 0.0, 1.0, 3)),
        ):
            table.bag(numpy.arange(100), numpy.arange(0, 101, 2))  # it is full now
            ids = numpy.arange(50, 250)
            found = table.bag(ids, offsets, insert=False)
            self.assertEqual(len(table), 100)
            numpy.testing.assert_array_equal(found, twin.bag(ids, offsets))
            self.assertEqual(len(twin), 200)

    def test_results_go_where_they_are_wanted(self):
        table = self.table()
        ids, offsets = numpy.arange(10), numpy.array([0, 5, 10])
        wide = numpy.full((2, 3 * DIM), 9, numpy.float32)
        out = wide[:, DIM : 2 * DIM]
        self.assertIs(table.bag(ids, offsets, out=out), out)
        numpy.testing.assert_array_equal(out, table.bag(ids, offsets))
        self.assertTrue((wide[:, :DIM] == 9).all() and (wide[:, 2 * DIM :] == 9).all())

    def test_nothing_at_all_is_a_batch(self):
        for table in self.in_every_tier():
            none = numpy.empty(0, numpy.int64)
            self.assertEqual(table.bag(none, numpy.array([0])).shape, (0, DIM))
            self.assertTrue((table.bag(none, numpy.array([0, 0])) == 0).all())
            table.update(none, numpy.array([0]), numpy.empty((0, DIM), numpy.float32))
            self.assertEqual(table.read(none).shape, (0, DIM))
        self.assertEqual(tidepool.bags([]), [])
        tidepool.updates([])

    def test_a_table_twice_in_one_call(self):
        ids, offsets = numpy.arange(10), numpy.array([0, 5, 10])
        for table in self.in_every_tier():
            first, second = tidepool.bags([(table, ids, offsets), (table, ids[::-1].copy(), offsets)])
            numpy.testing.assert_allclose(first, second[::-1], atol=1e-6)

    def test_announced_batches_are_here_when_they_are_used(self):
        random = numpy.random.default_rng(4)
        table, plain = self.table(TIERS["remote"], dram="200K"), self.table()
        batches = [batch(random, ROWS, 40, 9) for _ in range(20)]
        tokens = [table.prefetch(ids) for ids, _ in batches[:2]]
        for number, (ids, offsets) in enumerate(batches):
            if number + 2 < len(batches):
                tokens.append(table.prefetch(batches[number + 2][0]))
            numpy.testing.assert_array_equal(table.bag(ids, offsets), plain.bag(ids, offsets))
            self.assertFalse(tokens[number].finished)
            tokens[number].done()
            self.assertTrue(tokens[number].finished)
            tokens[number].done()
        counts = table.counts()
        self.assertGreater(counts.prefetched, 0)
        self.assertEqual(counts.fetched, 0)
        self.assertGreater(counts.hit_rate, 0.99)

    def test_tokens_that_are_dropped_are_done(self):
        table = self.table(TIERS["remote"], dram="200K")
        for _ in range(1000):  # more than may be announced at a time
            table.prefetch(numpy.arange(8))

    def test_threads_take_turns(self):
        table = self.table(TIERS["direct"], lr=1.0)
        ids, offsets = numpy.arange(ROWS), numpy.arange(ROWS + 1)
        before = table.read(ids)
        gradients = numpy.full((ROWS, DIM), 2.0**-10, numpy.float32)

        def steps():
            for _ in range(16):
                table.update(ids, offsets, gradients)
                table.bag(ids, offsets)

        threads = [threading.Thread(target=steps) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        numpy.testing.assert_allclose(before - table.read(ids), 64 * 2.0**-10, atol=1e-5)

    def test_closing_while_others_are_in_calls(self):
        for tier in TIERS.values():
            table, ends = self.table(tier), []

            def look():
                try:
                    while True:
                        table.bag(numpy.arange(ROWS), numpy.array([0, ROWS]))
                except tidepool.Unusable as error:
                    ends.append(error)

            threads = [threading.Thread(target=look) for _ in range(3)]
            for thread in threads:
                thread.start()
            table.close()
            for thread in threads:
                thread.join()
            self.assertEqual(len(ends), 3)

    def test_a_memory_server_that_goes_away_is_an_error(self):
        places = Everywhere(timeout=2.0)
        self.addCleanup(places.space.close)
        table = tidepool.Table(places.space, "lost", ROWS, DIM, tier=TIERS["remote"], dram="64K")
        ids, offsets = numpy.arange(ROWS), numpy.array([0, ROWS])
        table.write(ids, numpy.ones((ROWS, DIM), numpy.float32))  # or nobody would need the server
        places.server.stop()
        for _ in range(2):
            with self.assertRaises(tidepool.Error) as caught:
                table.bag(ids, offsets)
            self.assertIn(caught.exception.code, (tidepool.ErrorCode.LOST, tidepool.ErrorCode.UNREACHABLE))
            self.assertIn("lost", str(caught.exception))

    def test_a_mirror_outlives_either_of_its_servers(self):
        random = numpy.random.default_rng(4)
        rows = random.standard_normal((ROWS, DIM)).astype(numpy.float32)
        ids, offsets = numpy.arange(ROWS), numpy.arange(ROWS + 1)
        tensor = rows[::3].copy()
        for lost in range(2):
            servers = [MemoryServer("64M") for _ in range(2)]
            for server in servers:
                self.addCleanup(server.stop)
            far = "mirror:" + "+".join(server.spec.removeprefix("remote:") for server in servers)
            space = tidepool.Space(far=[far], threads=2, timeout=20.0)
            self.addCleanup(space.close)
            table = tidepool.Table(space, "kept", ROWS, DIM, tier=1, dram="64K")
            table.write(ids, rows)
            store = space.tensors(1)
            store.put("t", tensor)
            servers[lost].stop()
            numpy.testing.assert_array_equal(table.bag(ids, offsets), rows)
            table.write(ids, -rows)
            numpy.testing.assert_array_equal(table.bag(ids, offsets), -rows)
            numpy.testing.assert_array_equal(store.get("t"), tensor)


if __name__ == "__main__":
    unittest.main()
