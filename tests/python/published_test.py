# SPDX-License-Identifier: Apache-2.0
"""Tables that one process publishes and others read: forked readers compare what they get with what was published."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy

import tidepool

ROWS, DIM = 1000, 8

READER = """
import sys, numpy, tidepool
published = tidepool.open_published(sys.argv[1])
ids, offsets = numpy.arange(1000), numpy.arange(1001)
for line in sys.stdin:
    (users, items), generation = published.bags([("users", ids, offsets), ("items", ids, offsets)])
    print(generation, float(users.sum()), float(items.sum()), flush=True)
"""

# Publishes generation after generation, in each of which all rows of both tables are its number.
WRITER = """
import sys, numpy, tidepool
space = tidepool.Space()
users, items = tidepool.Table(space, "users", 1000, 8), tidepool.Table(space, "items", 1000, 8, ids="hashed")
tables = [users, items]
publisher = tidepool.Publisher(sys.argv[1], tables)
generation = int(sys.argv[2])
while True:
    generation += 1
    for table in tables:
        table.write(numpy.arange(1000), numpy.full((1000, 8), generation, numpy.float32))
    assert publisher.publish() == generation
    print(generation, flush=True)
"""


class PublishedTables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "tables")
        self.space = tidepool.Space(far=["cxl:64M"])
        self.addCleanup(self.space.close)
        self.users = tidepool.Table(self.space, "users", ROWS, DIM, optimizer="adagrad", lr=0.5, tier=1)
        self.items = tidepool.Table(
            self.space, "items", ROWS, DIM, ids="hashed", dtype="int8", init=("uniform", -1, 1, 3), tier=1
        )
        self.ids, self.offsets = numpy.array([5, 8, 5]), numpy.array([0, 2, 3])

    def publisher(self, *tables, path=None, **options):
        made = tidepool.Publisher(path or self.path, tables or [self.users, self.items], **options)
        self.addCleanup(made.close)
        return made

    def start(self, program, *arguments):
        child = subprocess.Popen(
            [sys.executable, "-c", program, self.path, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        def end():
            child.kill()
            child.communicate()

        self.addCleanup(end)
        return child

    def test_readers_have_the_last_generation(self):
        publisher = self.publisher()
        with self.assertRaises(tidepool.NotFound):
            tidepool.open_published(self.path)
        before = time.time()
        self.assertEqual(publisher.publish(), 1)
        self.assertTrue(before - 0.001 < tidepool.open_published(self.path).published_at < time.time() + 0.001)
        with tidepool.open_published(self.path) as published:
            self.assertEqual(list(published.tables), ["users", "items"])
            self.assertEqual(
                published.tables["items"], tidepool.PublishedTable("items", ROWS, DIM, "int8", "hashed")
            )
            for generation in range(1, 5):
                users = self.users.bag(self.ids, self.offsets, mode="mean")
                weights = numpy.array([1, 2, 3], numpy.float32)
                items = self.items.bag(self.ids, self.offsets, weights, insert=False)
                self.assertEqual(publisher.publish(), generation + 1)
                self.users.update(self.ids, self.offsets, numpy.ones_like(users))  # seen with the next one
                self.items.update(self.ids, self.offsets, numpy.ones_like(items))
                out = numpy.zeros((2, DIM), numpy.float32)
                got, seen = published.bags(
                    [
                        ("users", self.ids, self.offsets, None, "mean"),
                        tidepool.PublishedCall("items", self.ids, self.offsets, weights, out=out),
                    ]
                )
                self.assertEqual(seen, generation + 1)
                self.assertTrue(numpy.array_equal(got[0], users))
                self.assertIs(got[1], out)
                self.assertTrue(numpy.array_equal(out, items))
                self.assertTrue(numpy.array_equal(published.bag("users", self.ids, self.offsets, mode="mean"), users))
            publisher.publish()
            self.assertTrue(numpy.array_equal(published.read("items", self.ids), self.items.read(self.ids)))
            self.assertEqual((published.generation, published.repeated), (6, 0))

    def test_several_processes(self):
        publisher = self.publisher()
        publisher.publish()
        readers = [self.start(READER) for _ in range(3)]
        for value in range(1, 8):
            self.users.write(numpy.arange(ROWS), numpy.full((ROWS, DIM), value, numpy.float32))
            self.items.write(numpy.arange(ROWS), numpy.full((ROWS, DIM), value, numpy.float32))
            sums = [str(float(table.read(numpy.arange(ROWS)).sum())) for table in (self.users, self.items)]
            generation = publisher.publish()
            if value == 4:
                readers.pop().kill()  # costs nobody anything
            for reader in readers:
                reader.stdin.write("\n")
                reader.stdin.flush()
                self.assertEqual(reader.stdout.readline().split(), [str(generation), *sums])

    def test_a_publisher_that_is_killed(self):
        published, last = None, 0
        ids, offsets = numpy.arange(ROWS), numpy.arange(ROWS + 1)
        for _ in range(6):
            writer = self.start(WRITER, str(last))
            for _ in range(3):
                self.assertTrue(writer.stdout.readline())
            published = published or tidepool.open_published(self.path)
            for _ in range(50):
                both, generation = published.bags([("users", ids, offsets), ("items", ids, offsets)])
                for rows in both:
                    self.assertTrue((rows == generation).all())
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            both, last = published.bags([("users", ids, offsets), ("items", ids, offsets)])
            for rows in both:
                self.assertTrue((rows == last).all())

    def test_threads(self):
        publisher = self.publisher(self.users)
        publisher.publish()
        published, wrong, ids = tidepool.open_published(self.path), [], numpy.arange(ROWS)

        def read():
            while published.generation < 100:
                rows = published.read("users", ids)
                if not (rows == rows[0, 0]).all():
                    wrong.append(rows)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        while publisher.publish() < 100:
            self.users.write(ids, numpy.full((ROWS, DIM), published.generation, numpy.float32))
        for reader in readers:
            reader.join()
        self.assertEqual(wrong, [])

    def test_forked_children_read_and_do_not_publish(self):
        publisher = self.publisher(self.users)
        publisher.publish()
        published = tidepool.open_published(self.path)
        child = os.fork()
        if child == 0:
            good = published.read("users", self.ids).shape == (3, DIM)
            try:
                publisher.publish()
            except tidepool.Unusable:
                os._exit(0 if good else 1)
            os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(publisher.publish(), 2)

    def test_tables_stay_until_the_publisher_is_closed(self):
        publisher = self.publisher(self.users)
        self.users.close()
        self.assertEqual(publisher.publish(), 1)
        publisher.close()
        publisher.close()
        self.assertTrue(publisher.closed)
        self.assertRaises(tidepool.Unusable, publisher.publish)
        published = tidepool.open_published(self.path)
        self.assertEqual(published.read("users", self.ids).shape, (3, DIM))
        published.close()
        self.assertTrue(published.closed)
        self.assertRaises(tidepool.Unusable, published.read, "users", self.ids)

    def test_errors(self):
        publisher = self.publisher(self.users)
        publisher.publish()
        self.assertRaises(TypeError, tidepool.Publisher, self.path, [3])
        self.assertRaises(ValueError, tidepool.Publisher, self.path, [self.items], mode=0o7777)
        self.assertRaises(tidepool.Conflict, tidepool.Publisher, self.path, [self.items])
        self.assertRaises(tidepool.Conflict, tidepool.Publisher, self.path + "2", [self.users])
        self.assertRaises(tidepool.InvalidArgument, tidepool.Publisher, self.path, [])
        published = tidepool.open_published(self.path)
        self.assertRaises(tidepool.NotFound, published.read, "items", self.ids)
        self.assertRaises(IndexError, published.read, "users", numpy.array([ROWS]))
        self.assertRaises(IndexError, published.bag, "users", numpy.array([-1]), numpy.array([0, 1]))
        self.assertRaises(ValueError, published.bag, "users", self.ids, numpy.array([0, 9]))
        self.assertRaises(TypeError, published.bag, "users", [1], self.offsets)
        self.assertRaises(ValueError, published.bag, "users", self.ids, self.offsets, mode="max")
        with open(self.path + "3", "w") as file:
            file.write("no tables")
        self.assertRaises(tidepool.Corrupt, tidepool.open_published, self.path + "3")

    def test_the_files_rights(self):
        self.publisher(self.users, mode=0o640)
        self.assertEqual(os.stat(self.path).st_mode & 0o7777, 0o640)


if __name__ == "__main__":
    unittest.main()
