# SPDX-License-Identifier: Apache-2.0
"""tidepool.TensorStore: exact bytes of every kind of array, whole values, futures, and what is refused."""

import array
import asyncio
import copy
import gc
import os
import pickle
import signal
import threading
import unittest

import numpy
import torch

import tidepool
from fork_test import in_child
from places import Everywhere

FAR = {"direct": 1, "remote": 2}


class Tensors(unittest.TestCase):
    def setUp(self):
        self.places = Everywhere(size="128M")
        self.addCleanup(self.places.close)
        self.stores = {name: self.places.space.tensors(tier) for name, tier in FAR.items()}

    def everywhere(self):
        return self.stores.values()

    def test_arrays_come_back_as_they_were(self):
        random = numpy.random.default_rng(1)
        for store in self.everywhere():
            for word in ("f2", "f4", "f8", ">f8", "i1", "u2", "i4", ">i8", "?", "c8", "c16", "M8[ns]", "S5", "U3", "V6"):
                for shape in ((), (0,), (7,), (3, 0, 2), (3, 5, 7), (1000, 33)):
                    kind = numpy.dtype(word)
                    data = random.integers(0, 256, (*shape, kind.itemsize), numpy.uint8)
                    if kind.kind in "U?":
                        data &= 1
                    values = numpy.frombuffer(data.tobytes(), kind).reshape(shape)
                    store.put("a", values)
                    got = store.get("a")
                    self.assertEqual((got.dtype, got.shape), (values.dtype, values.shape))
                    self.assertEqual(got.tobytes(), values.tobytes())

    def test_torch_tensors_come_back_as_they_were(self):
        for store in self.everywhere():
            for kind in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64):
                for shape in ((), (0, 3), (17,), (300, 41)):
                    values = (torch.randn(shape) * 9).to(kind)
                    store.put("t", values)
                    got = store.get("t")
                    self.assertIsInstance(got, torch.Tensor)
                    self.assertEqual((got.dtype, got.shape), (kind, values.shape))
                    self.assertTrue(torch.equal(got, values))
            weight = torch.nn.Parameter(torch.randn(5, 5))
            store.put("w", weight)
            out = torch.nn.Parameter(torch.zeros(5, 5))
            self.assertIs(store.get("w", out=out), out)
            self.assertTrue(torch.equal(out, weight))

    def test_other_libraries_and_buffers(self):
        class Foreign:
            def __init__(self, values):
                self.values = values

            def __dlpack__(self, stream=None):
                return self.values.__dlpack__()

            def __dlpack_device__(self):
                return self.values.__dlpack_device__()

        values = numpy.arange(12, dtype=numpy.int32).reshape(3, 4)
        for store in self.everywhere():
            store.put("a", Foreign(values))
            numpy.testing.assert_array_equal(store.get("a"), values)
            store.put("b", array.array("d", [1, 2, 3]))
            numpy.testing.assert_array_equal(store.get("b"), [1.0, 2.0, 3.0])
            store.put("c", b"some bytes")
            self.assertEqual(store.get("c").tobytes(), b"some bytes")
            # One library's tensor into the other's memory.
            out = torch.zeros(3, 4, dtype=torch.int32)
            store.get("a", out=out)
            numpy.testing.assert_array_equal(out.numpy(), values)
            part = numpy.zeros((9, 4), numpy.int32)
            store.get("a", out=part[3:6])
            numpy.testing.assert_array_equal(part[3:6], values)
            self.assertEqual(part[:3].sum() + part[6:].sum(), 0)

    def test_what_is_refused_changes_nothing(self):
        values = numpy.arange(12.0).reshape(3, 4)
        frozen = numpy.zeros((3, 4))
        frozen.flags.writeable = False
        for store in self.everywhere():
            store.put("a", values)
            for kind, wrong in (
                (TypeError, [1, 2]),
                (TypeError, None),
                (TypeError, 5),
                (TypeError, numpy.array([None])),
                (TypeError, numpy.zeros(3, [("x", "f4")])),
                (TypeError, torch.ones(3).to_sparse()),
                (TypeError, torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)),
                (TypeError, torch.ones(3, device="meta")),
                (ValueError, values.T),
                (ValueError, numpy.asfortranarray(values)),
                (TypeError, numpy.ma.masked_array(values, values > 1)),
                (ValueError, values[:, ::2]),
                (ValueError, torch.ones(3, 4).t()),
                (ValueError, torch.ones(3, dtype=torch.complex64).conj()),
            ):
                with self.assertRaises(kind):
                    store.put("a", wrong)
                with self.assertRaises((TypeError, ValueError)):
                    store.get("a", out=wrong if wrong is not None else 5)
            for kind, wrong in (
                (ValueError, numpy.zeros((4, 3))),
                (ValueError, numpy.zeros(12)),
                (TypeError, numpy.zeros((3, 4), "f4")),
                (TypeError, numpy.zeros((3, 4), ">f8")),
                (TypeError, torch.zeros(3, 4)),
                (ValueError, numpy.zeros((3, 8))[:, ::2]),
                (ValueError, frozen),
            ):
                with self.assertRaises(kind):
                    store.get("a", out=wrong)
            for wrong in (5, None, b"a"):
                for act in (store.get, store.delete, store.info, lambda name: store.put(name, values)):
                    with self.assertRaises(TypeError):
                        act(wrong)
            for wrong in ("", "n" * 5000):
                with self.assertRaises(ValueError):
                    store.put(wrong, values)
            with self.assertRaises(tidepool.NoSpace):
                store.put("a", numpy.empty(10**9, numpy.uint8))
            self.assertEqual(store.names(), ["a"])
            numpy.testing.assert_array_equal(store.get("a"), values)
            for act in (store.get, store.delete, store.info):
                with self.assertRaises(tidepool.NotFound) as caught:
                    act("not there")
                self.assertIsInstance(caught.exception, LookupError)
        space = self.places.space
        for kind, options in (
            (tidepool.NotFound, {"tier": 3}),
            (ValueError, {"tier": 0}),
            (TypeError, {"tier": "1"}),
            (ValueError, {"limit": 0}),
            (ValueError, {"limit": "much"}),
            (ValueError, {"threads": 0}),
            (TypeError, {"checksums": 1}),
        ):
            with self.assertRaises(kind):
                space.tensors(**options)

    def test_names_info_and_counts(self):
        for store in self.everywhere():
            store.put("b", numpy.zeros((2, 3), "f4"))
            store.put("a", torch.zeros(5, dtype=torch.bfloat16))
            self.assertEqual(list(store), ["a", "b"])
            self.assertEqual(len(store), 2)
            self.assertIn("a", store)
            self.assertNotIn("c", store)
            self.assertEqual(store.info("b"), tidepool.TensorInfo((2, 3), "float32", "numpy", 24))
            self.assertEqual(store.info("a"), tidepool.TensorInfo((5,), "bfloat16", "torch", 10))
            store.get("a")
            counts = store.counts()
            self.assertEqual((counts.tensors, counts.stored_bytes, counts.used_bytes), (2, 34, 8192))
            self.assertEqual((counts.puts, counts.gets, counts.put_bytes, counts.got_bytes), (2, 1, 34, 10))
            self.assertEqual((counts.under_way, counts.failures), (0, 0))
            store.delete("b")
            store.delete("a")
            store.trim()
            counts = store.counts()
            self.assertEqual((counts.tensors, counts.used_bytes, counts.held_bytes), (0, 0, 0))

    def test_tables_and_tensors_share_a_tier(self):
        values = numpy.random.default_rng(2).random(1 << 20)
        for tier, store in zip(FAR.values(), self.everywhere()):
            store.put("a", values)
            table = tidepool.Table(self.places.space, "t", 100_000, 32, tier=tier, init=("uniform", 0, 1))
            store.put("b", values)
            rows = table.read(numpy.arange(100))
            store.delete("a")
            store.put("c", values)
            numpy.testing.assert_array_equal(table.read(numpy.arange(100)), rows)
            numpy.testing.assert_array_equal(store.get("b"), values)
            table.close()

    def test_many_under_way(self):
        random = numpy.random.default_rng(3)
        tensors = {f"t{i}": random.random(random.integers(1, 200_000)) for i in range(60)}
        for store in self.everywhere():
            for future in [store.put_async(name, values) for name, values in tensors.items()]:
                self.assertIsNone(future.result(timeout=60))
            futures = {name: store.get_async(name) for name in tensors}
            for name, future in futures.items():
                numpy.testing.assert_array_equal(future.result(), tensors[name])
                self.assertTrue(future.done())
                self.assertIsNone(future.exception())

    def test_await(self):
        values = numpy.random.default_rng(4).random(500_000)

        async def work(store):
            await asyncio.gather(*(store.put_async(f"a{i}", values + i) for i in range(8)))
            got = await asyncio.gather(*(store.get_async(f"a{i % 8}") for i in range(50)))
            for i, each in enumerate(got):
                numpy.testing.assert_array_equal(each, values + i % 8)
            out = numpy.empty_like(values)
            future = store.get_async("a3", out)
            for _ in range(2):
                self.assertIs(await future, out)
            numpy.testing.assert_array_equal(out, values + 3)

        for store in self.everywhere():
            for _ in range(2):  # one loop after the other
                asyncio.run(work(store))

    def test_a_get_sees_one_value(self):
        size = 300_000
        for store in self.everywhere():
            store.put("a", numpy.zeros(size, numpy.uint8))
            stop = threading.Event()

            def write():
                number = 0
                while not stop.is_set():
                    number += 1
                    store.put("a", numpy.full(size, number % 250, numpy.uint8))

            writer = threading.Thread(target=write)
            writer.start()
            try:
                for _ in range(100):
                    got = store.get("a")
                    self.assertEqual(got.min(), got.max())
            finally:
                stop.set()
                writer.join()

    def test_futures_that_are_dropped_keep_their_memory(self):
        for store in self.everywhere():
            for i in range(40):
                store.put_async(f"a{i % 4}", numpy.full(1 << 18, i))
                store.get_async(f"a{i % 4}") if f"a{i % 4}" in store else None
                gc.collect()
            self.places.space.tensors(1).close()
            for i in range(4):
                while store.counts().under_way:
                    store.get("a3")
                self.assertEqual(set(store.get(f"a{i}")), {36 + i})

    def test_checksums(self):
        values = numpy.random.default_rng(5).random(400_000)
        for tier in FAR.values():
            with self.places.space.tensors(tier, checksums=True) as store:
                store.put("a", values)
                numpy.testing.assert_array_equal(store.get("a"), values)

    def test_the_limit(self):
        for tier in FAR.values():
            with self.places.space.tensors(tier, limit="8M") as store:
                store.put("a", numpy.ones(5 << 20, numpy.uint8))
                with self.assertRaises(tidepool.NoSpace):  # both values have to fit
                    store.put("a", numpy.zeros(5 << 20, numpy.uint8))
                self.assertEqual(store.get("a").min(), 1)

    def test_closing(self):
        for store in self.everywhere():
            put = store.put_async("a", numpy.ones(4 << 20))
            store.close()
            store.close()
            self.assertTrue(store.closed)
            self.assertTrue(put.done())
            put.result()
            for act in (
                lambda: store.put("a", numpy.ones(1)),
                lambda: store.get("a"),
                lambda: store.delete("a"),
                lambda: store.names(),
                lambda: store.counts(),
                lambda: store.trim(),
                lambda: len(store),
            ):
                with self.assertRaisesRegex(RuntimeError, "closed") as caught:
                    act()
                self.assertIsInstance(caught.exception, tidepool.Unusable)
        with self.places.space.tensors() as store:
            store.put("a", numpy.ones(3))
        self.assertTrue(store.closed)
        left = self.places.space.tensors()
        self.places.space.close()
        self.assertTrue(left.closed)
        with self.assertRaises(tidepool.Unusable):
            self.places.space.tensors()

    def test_copies_are_refused(self):
        store = self.stores["direct"]
        future = store.put_async("a", numpy.ones(3))
        for act in (copy.copy, copy.deepcopy, pickle.dumps):
            for thing in (store, future):
                with self.assertRaisesRegex(TypeError, "belongs to its process"):
                    act(thing)

    def test_a_child_of_fork_can_do_nothing(self):
        values = numpy.random.default_rng(6).random(3 << 20)

        def refused(*acts):
            for act in acts:
                try:
                    act()
                    return "done"
                except tidepool.Unusable as error:
                    if "process" not in str(error):
                        return str(error)
            return "refused"

        for store in self.everywhere():
            store.put("a", values)
            under_way = store.put_async("b", values)
            got = store.get_async("a")

            def child():
                said = refused(
                    lambda: store.get("a"),
                    lambda: store.put("a", values),
                    lambda: store.delete("a"),
                    lambda: store.names(),
                    lambda: under_way.result(1),
                    lambda: under_way.done(),
                    lambda: asyncio.run(_awaited(got)),
                )
                store.close()
                self.places.space.close()
                return said

            self.assertEqual(in_child(child), "refused")
            under_way.result()
            numpy.testing.assert_array_equal(got.result(), values)
            numpy.testing.assert_array_equal(store.get("b"), values)

    def test_a_server_that_goes_away(self):
        places = Everywhere(timeout=2.0)
        self.addCleanup(places.space.close)
        store = places.space.tensors(2)
        values = numpy.ones(1 << 20)
        store.put("a", values)
        places.server.stop()
        for act in (lambda: store.get("a"), lambda: store.put("a", values), lambda: store.put("b", values)):
            with self.assertRaises(tidepool.Error) as caught:
                act()
            self.assertIn(caught.exception.code, (tidepool.ErrorCode.LOST, tidepool.ErrorCode.UNREACHABLE))
        self.assertEqual(store.names(), ["a"])

    def test_waiting_has_a_limit_and_signals_are_served(self):
        values = numpy.ones(1 << 20)
        store, future = self.held_get(values)
        with self.assertRaises(TimeoutError) as caught:
            future.result(timeout=0.05)
        self.assertNotIsInstance(caught.exception, tidepool.Error)
        self.assertFalse(future.done())

        class Rang(Exception):
            pass

        def ring(*_):
            raise Rang

        before = signal.signal(signal.SIGALRM, ring)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with self.assertRaises(Rang):
                future.result()
        finally:
            signal.signal(signal.SIGALRM, before)
        self.places.server.process.send_signal(signal.SIGCONT)
        numpy.testing.assert_array_equal(future.result(), values)

    def held_get(self, values):
        """A get that cannot end: the memory server is stopped."""
        store = self.stores["remote"]
        store.put("a", values)
        server = self.places.server.process
        server.send_signal(signal.SIGSTOP)
        self.addCleanup(server.send_signal, signal.SIGCONT)  # before the store is closed
        os.waitid(os.P_PID, server.pid, os.WSTOPPED)  # its threads may run on for a while after the signal
        return store, store.get_async("a")

    def test_who_stops_waiting_leaves_the_transfer_alone(self):
        values = numpy.random.default_rng(7).random(1 << 20)

        async def work():
            store, future = self.held_get(values)
            late = asyncio.ensure_future(_awaited(future))
            for _ in range(2):
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(future, 0.01)
            self.places.server.process.send_signal(signal.SIGCONT)
            self.assertIs(await late, await future)
            numpy.testing.assert_array_equal(await future, values)
            await store.put_async("b", values)

        asyncio.run(work())


async def _awaited(future):
    return await future


if __name__ == "__main__":
    unittest.main()
