# SPDX-License-Identifier: Apache-2.0
"""Unchanged PyTorch programs under `tidepool run`: the same results, bit for bit, from rows."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from places import MemoryServer

BUILD = os.environ["TIDEPOOL_BUILD"]
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "row_programs.py")
TRAINERS = os.path.join(HERE, "trainers")


def environment(**more):
    """That of a user who has never heard of Tidepool."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TIDEPOOL")}
    kept.pop("PYTHONPATH", None)
    return {**kept, **more}


def run(*words, far, rows="64", dram="256M", options=(), **more):
    """A program under `tidepool run`; what became of it."""
    command = [os.path.join(BUILD, "bin", "tidepool"), "run", "--dram", dram, "--far", far]
    return subprocess.run(
        [*command, "--rows", rows, *options, "--", *words],
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
    )


def plain(*words, **more):
    return subprocess.run(
        words, env=environment(**more), capture_output=True, text=True, check=False
    )


class Programs(unittest.TestCase):
    """As many made-up programs as TIDEPOOL_ROW_PROGRAMS says, two thirds of them over a memory server."""

    many = int(os.environ.get("TIDEPOOL_ROW_PROGRAMS", "60"))

    @classmethod
    def setUpClass(cls):
        cls.expected = plain(sys.executable, PROGRAMS, "0", str(cls.many)).stdout.splitlines()

    def check(self, far, first, end):
        found = run(sys.executable, PROGRAMS, str(first), str(end), far=far, rows="all:64")
        self.assertEqual(found.returncode, 0, found.stderr)
        for kind in ("RowTensor", "DenseGradRowTensor"):  # not only the same as plain, but by rows
            self.assertIn(kind, found.stderr.split())
        for one, other in zip(self.expected[first:end], found.stdout.splitlines()):
            self.assertEqual(one, other)
        self.assertEqual(len(self.expected), self.many)
        self.assertEqual(len(found.stdout.splitlines()), end - first)

    def test_a_memory_server_changes_no_bit(self):
        server = MemoryServer("1G")
        self.addCleanup(server.stop)
        self.check(server.spec, 0, self.many * 2 // 3)

    def test_a_pool_changes_no_bit(self):
        self.check("cxl:256M", self.many * 2 // 3, self.many)

    def test_a_mirror_changes_no_bit(self):
        servers = [MemoryServer("1G") for _ in range(2)]
        for server in servers:
            self.addCleanup(server.stop)
        addresses = [server.spec.removeprefix("remote:") for server in servers]
        self.check("mirror:" + "+".join(addresses), 0, self.many // 10)

    def test_operations_of_torchs_own_tests(self):
        """They give what they give on dense weights, and are done as the document says."""
        import torch

        found = run(sys.executable, os.path.join(HERE, "operations_met.py"), far="cxl:256M", rows="all:1")
        self.assertEqual(found.returncode, 0, found.stderr)
        if torch.__version__.startswith("1.13"):  # another version may take other ways
            with open(os.path.join(HERE, "../../docs/torch-operations.md"), encoding="utf-8") as file:
                told = file.read().split("<!-- generated: tests/python/operations_met.py -->\n")[1]
            self.assertEqual(told, found.stdout)

    def test_models_of_the_common_kinds(self):
        """One after the other in a process, which imports torch once for all of them."""
        server = MemoryServer("1G")
        self.addCleanup(server.stop)
        trainers = [os.path.join(TRAINERS, name) for name in sorted(os.listdir(TRAINERS))]
        command = [sys.executable, "-c", IN_TURN, *trainers]
        expected = plain(*command)
        self.assertEqual(expected.returncode, 0, expected.stderr)
        for far in (server.spec, "cxl:256M"):
            with self.subTest(far=far):
                found = run(*command, far=far)
                self.assertEqual(found.returncode, 0, found.stderr)
                self.assertEqual(expected.stdout, found.stdout)
                said = found.stderr.splitlines()
                self.assertEqual(said[0::2], trainers, found.stderr)
                for kinds in said[1::2]:
                    self.assertEqual(set(kinds.split()), {"RowTensor"}, found.stderr)


IN_TURN = """
import runpy, sys
for path in sys.argv[1:]:
    print(path, file=sys.stderr)
    runpy.run_path(path, run_name="__main__")
"""


TRAINER = """
import torch
torch.manual_seed(1)
bag = torch.nn.EmbeddingBag(20000, 32, mode="sum", sparse=True)
optimizer = torch.optim.{optimizer}(bag.parameters(), lr=0.1)
for _ in range(20):
    bag(torch.randint(0, 20000, (64, 4))).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
states = [one for state in optimizer.state.values() for one in state.values()]
print(type(bag.weight).__name__, *(type(one).__name__ for one in states if hasattr(one, "shape")))
"""


SHARED = """
import sys, torch

def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.tensor([[1, 2, step]])).pow(2).sum().backward()
        optimizer.step()

def main(method):
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(5000, 8, mode="sum", sparse=True), torch.nn.Linear(8, 1))
    model.share_memory()
    print(type(model[0].weight), file=sys.stderr)
    print(model[0].weight.is_shared())
    for _ in range(2):
        child = torch.multiprocessing.get_context(method).Process(target=train, args=(model,))
        child.start()
        child.join()
        print(child.exitcode, model[0].weight[:4].sum().item(), model[1].weight.sum().item())

if __name__ == "__main__":
    for method in sys.argv[1:]:
        main(method)
"""


DISTRIBUTED = """
import os, sys, torch
import torch.distributed as distributed

WHERE = os.environ["WHERE"]

def train(rank):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method="file://" + WHERE, rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(5000, 8, mode="sum", sparse=True), torch.nn.Linear(8, 1))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.randint(0, 5000, (16, 4))).pow(2).mean()
        loss.backward()
        optimizer.step()
    print(type(model.module[0].weight), file=sys.stderr)
    with open(f"{WHERE}.{rank}", "w") as out:
        out.write(f"{loss.item()} {[one.sum().item() for one in model.parameters()]}")
    distributed.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (), 2)
    print([open(f"{WHERE}.{rank}").read() for rank in (0, 1)])
"""


NARROW = """
import sys, torch

def main(dtype):
    torch.manual_seed(5)
    tokens = torch.nn.Embedding(5000, 8, sparse=True, dtype=dtype, padding_idx=3)
    half_way = torch.nn.EmbeddingBag(5000, 8, mode="sum", sparse=True).to(dtype)
    torch.nn.init.uniform_(half_way.weight, -0.1, 0.1)
    optimizer = torch.optim.SGD([*tokens.parameters(), *half_way.parameters()], lr=0.1)
    print(type(tokens.weight), file=sys.stderr)
    assert type(tokens.weight) is type(half_way.weight)
    for _ in range(5):
        optimizer.zero_grad()
        ids = torch.randint(0, 5000, (64, 4))
        found = tokens(ids).float().sum(1)
        if dtype == torch.float16:  # this torch has no bags of bfloat16
            found = found + half_way(ids).float()
        loss = found.pow(2).mean()
        loss.backward()
        optimizer.step()
        print(loss.item())
    for weight in (tokens.weight, half_way.weight):
        print(weight.dtype, weight.detach().double().sum().item(), weight[7].tolist())

main(torch.float16)
main(torch.bfloat16)
"""


DENSE = """
import sys, torch
torch.manual_seed(1)
tokens, bag = torch.nn.Embedding(5000, 8, padding_idx=-1), torch.nn.EmbeddingBag(5000, 8, mode="mean", padding_idx=7)
optimizer = torch.optim.{optimizer}([*tokens.parameters(), *bag.parameters()], lr=0.1{more})
for step in range(6):
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    ids = torch.randint(0, 5000, (64, 4))
    loss = (tokens(ids).sum(1) * bag(ids)).pow(2).mean() + tokens(ids[:, :2]).sum()
    (slope,) = torch.autograd.grad(loss, tokens.weight, create_graph=True)
    (loss + slope.pow(2).sum()).backward(retain_graph=True)
    loss.backward()
    optimizer.step()
    print(loss.item(), tokens.weight.grad.sum().item(), bag.weight.grad[ids[0, 0]].tolist())
print(tokens.weight[:2].tolist(), [one.weight.double().sum().item() for one in (tokens, bag)], tokens.weight.grad.shape)
print(type(bag.weight), getattr(getattr(bag.weight, "rows", None), "in_table", None), file=sys.stderr)
"""


LISTED = """
import gc, json, os, subprocess, sys, torch

def listed():
    words = [sys.argv[1], "stat", str(os.getpid()), "--json"]
    return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)

layer = torch.nn.EmbeddingBag(20000, 32, mode="sum", sparse=True)
optimizer = torch.optim.Adagrad(layer.parameters(), lr=0.1)
for _ in range(20):
    layer(torch.randint(0, 50, (64, 4))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
trained = listed()
child = os.fork()
if child == 0:
    print(json.dumps(listed()["tables"]), flush=True)
    os._exit(0)
os.waitpid(child, 0)
del layer, optimizer
gc.collect()
print(json.dumps([trained["tables"], trained["dram_budget_bytes"], listed()["tables"]]))
"""


LISTED_BY_PACKAGE = """
import json, os, subprocess, sys, numpy, tidepool
space = tidepool.Space([sys.argv[2]])
table = tidepool.Table(space, "items", 4000, 8, tier=1, dram="64K")
for _ in range(10):
    table.bag(numpy.arange(64), numpy.arange(65))
words = [sys.argv[1], "stat", str(os.getpid()), "--json"]
print(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
"""


MIRRORED = """
import sys, torch
torch.set_num_threads(1)
torch.manual_seed(2)
bag = torch.nn.EmbeddingBag(400_000, 32, mode="sum", sparse=True)
optimizer = torch.optim.Adagrad(bag.parameters(), lr=0.1)
for step in range(80):
    loss = bag(torch.randint(0, 400_000, (512, 8))).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item(), flush=True)
state = optimizer.state[bag.weight]["sum"]
print([one.double().sum().item() for one in (bag.weight, state)], bag.weight[::9999].tolist())
print(type(bag.weight).__name__, type(state).__name__, file=sys.stderr)
"""


class Mirrors(unittest.TestCase):
    """One of a mirror's servers is killed while an unchanged program trains."""

    def run_and_kill(self, killed, at):
        servers = [MemoryServer("1G") for _ in range(2)]
        for server in servers:
            self.addCleanup(server.stop)
        addresses = [server.spec.removeprefix("remote:") for server in servers]
        with tempfile.TemporaryDirectory() as folder:
            stats = os.path.join(folder, "stats.json")
            command = [os.path.join(BUILD, "bin", "tidepool"), "run", "--dram", "64M", "--rows", "64", "--stats", stats]
            command += ["--far", "mirror:" + "+".join(addresses), "--conf", "budget_scope:managed"]
            with subprocess.Popen(
                [*command, "--", sys.executable, "-c", MIRRORED],
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as program:
                lines = []
                for line in program.stdout:
                    lines.append(line)
                    if line.startswith(f"{at} "):
                        servers[killed].stop()
                errors = program.stderr.read()
            self.assertEqual(program.returncode, 0, errors)
            self.assertIn("RowTensor RowTensor", errors)
            with open(stats, encoding="utf-8") as file:
                tier = json.load(file)["tiers"][1]
        self.assertEqual([copy["state"] for copy in tier["copies"]].index("lost"), killed, tier)
        return "".join(lines)

    def test_either_may_be_killed_while_rows_train(self):
        expected = plain(sys.executable, "-c", MIRRORED)
        self.assertEqual(expected.returncode, 0, expected.stderr)
        for killed, at in ((0, 3), (1, 50)):
            with self.subTest(killed=killed, at=at):
                self.assertEqual(self.run_and_kill(killed, at), expected.stdout)


class Statistics(unittest.TestCase):
    """`tidepool stat` of a process that has tables."""

    command = os.path.join(BUILD, "bin", "tidepool")

    def check_listed(self, far):
        found = run(sys.executable, "-c", LISTED, self.command, far=far)
        self.assertEqual(found.stderr, "")
        child, parent = (json.loads(line) for line in found.stdout.splitlines())
        self.assertEqual(child, [], "a child has none of its parent's")
        tables, budget, closed = parent
        self.assertEqual(closed, [])
        self.assertEqual(len(tables), 2)
        for table in tables:
            self.assertRegex(table["name"], r"^rows-\d+-\d+-20000x32$")
            self.assertTrue(table["tier"].startswith(far), table["tier"])
            self.assertEqual((table["rows"], table["row_bytes"]), (20000, 128))
            self.assertGreater(table["lookups"], 20 * 50)
            self.assertGreater(table["hit_ratio"], 0.5)
            self.assertGreater(table["dram_bytes"], 0)
            self.assertLessEqual(table["dram_bytes"], table["dram_budget_bytes"])
            self.assertAlmostEqual(table["dram_budget_share"], table["dram_budget_bytes"] / budget, places=5)
        self.assertLessEqual(sum(table["dram_budget_bytes"] for table in tables), budget / 2)

    def test_tables_of_a_pool_are_listed(self):
        self.check_listed("cxl:256M")

    def test_tables_of_a_memory_server_are_listed(self):
        server = MemoryServer("1G")
        self.addCleanup(server.stop)
        self.check_listed(server.spec)

    def test_those_of_the_python_package_as_well(self):
        package = os.path.join(BUILD, "python")
        words = [sys.executable, "-c", LISTED_BY_PACKAGE, self.command, "cxl:64M"]
        found = run(*words, far="cxl:256M", PYTHONPATH=package)
        (table,) = json.loads(found.stdout)["tables"]
        self.assertEqual((table["name"], table["tier"]), ("items", "cxl:64M"))
        self.assertEqual(table["lookups"], 640)
        self.assertGreater(table["hit_ratio"], 0.8)
        self.assertEqual(table["dram_budget_bytes"], 65536)


class Weights(unittest.TestCase):
    """That it is rows which train, and not a copy."""

    def test_weight_and_state_are_rows(self):
        states = {"SGD": 0, "Adagrad": 1, "SparseAdam": 2}
        program = "".join(TRAINER.format(optimizer=optimizer) for optimizer in states)
        found = run(sys.executable, "-c", program, far="cxl:256M")
        self.assertEqual(found.stderr, "")
        for (optimizer, count), line in zip(states.items(), found.stdout.splitlines(), strict=True):
            self.assertEqual(line.split().count("RowTensor"), 1 + count, optimizer)

    def test_small_weights_stay_as_they_are(self):
        found = run(sys.executable, "-c", TRAINER.format(optimizer="SGD"), far="cxl:256M", rows="4M")
        self.assertEqual(found.stdout, "Parameter\n")

    def test_a_table_larger_than_local_memory(self):
        code = (
            "import torch; layer = torch.nn.Embedding(1500000, 64, sparse=True);"
            "torch.nn.init.constant_(layer.weight, 0.5); print(layer(torch.tensor([7])).sum().item())"
        )
        found = run(sys.executable, "-c", code, far="cxl:512M", rows="auto", dram="200M")
        self.assertEqual(found.stdout, "32.0\n", found.stderr)

    def test_an_id_without_a_row_is_an_index_error(self):
        code = (
            "import torch; layer = torch.nn.Embedding(1000, 8, sparse=True)\n"
            "try: layer(torch.tensor([1000]))\n"
            "except IndexError as error: print(str(error)[:26])"
        )
        found = run(sys.executable, "-c", code, far="cxl:256M")
        self.assertEqual(found.stdout, "index out of range in self\n", found.stderr)

    def test_no_room_in_the_tier_leaves_pages(self):
        found = run(sys.executable, "-c", TRAINER.format(optimizer="SGD"), far="cxl:2M")
        self.assertEqual(found.stdout, "Parameter\n")
        self.assertRegex(found.stderr, r"tidepool: rows: EmbeddingBag of 20000 x 32 stays in pages: ")

    def test_dense_gradients_of_plain_sgd_are_rows(self):
        program = DENSE.format(optimizer="SGD", more="")
        self.assertRegex(self.same(program, rows="all:64").stderr, r"DenseGradRowTensor'> True")
        plain_layers = run(sys.executable, "-c", program, far="cxl:256M")
        self.assertIn("Parameter'> None", plain_layers.stderr)

    def test_dense_gradients_that_are_needed_whole_leave_pages(self):
        optimizers = (("SGD", ", momentum=0.5"), ("SGD", ", weight_decay=0.1"), ("Adam", ""))
        program = "".join(DENSE.format(optimizer=optimizer, more=more) for optimizer, more in optimizers)
        said = self.same(program, rows="all:64").stderr
        self.assertEqual(said.count("DenseGradRowTensor'> False"), len(optimizers), said)
        self.assertIn("takes all of its dense gradient; with sparse=True it would be rows", said)

    def same(self, program, *arguments, dram="256M", rows="64"):
        """A program, from a file, does with weights in rows what it does without Tidepool; returns the latter."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "program.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(program)
            expected = plain(sys.executable, path, *arguments, WHERE=os.path.join(folder, "plain"))
            found = run(
                sys.executable, path, *arguments, far="cxl:256M", dram=dram, rows=rows, WHERE=os.path.join(folder, "rows")
            )
        self.assertEqual(expected.returncode, 0, expected.stderr)
        self.assertEqual(found.stdout, expected.stdout, found.stderr)
        self.assertIn("RowTensor", found.stderr)
        self.assertNotIn("RowTensor", expected.stderr)
        return found

    def test_arrays_of_a_weight_are_its_memory(self):
        self.same(
            "import sys, torch; layer = torch.nn.Embedding(5000, 8, sparse=True); layer.weight.data.fill_(1)\n"
            "optimizer = torch.optim.SGD(layer.parameters(), lr=1.0); print(type(layer.weight), file=sys.stderr)\n"
            "array = layer.weight.detach()[10:20].numpy(); array[0] = 5\n"
            "print(layer(torch.tensor([10])).tolist()); layer(torch.tensor([11])).sum().backward()\n"
            "optimizer.step(); print(array[:2].tolist(), layer.weight.data_ptr() != 0)\n"
        )

    def test_rows_are_a_table_again_when_arrays_are_gone(self):
        code = (
            "import torch; layer = torch.nn.Embedding(5000, 8, sparse=True)\n"
            "array = layer.weight.detach().numpy(); print(layer.weight.rows.in_table)\n"
            "del array; print(layer.weight.rows.in_table)"
        )
        found = run(sys.executable, "-c", code, far="cxl:256M")
        self.assertEqual(found.stdout, "False\nTrue\n", found.stderr)

    def test_a_shared_weight_is_trained_by_other_processes(self):
        self.assertRegex(self.same(SHARED, "fork", "spawn").stdout, r"^(True\n0 .*\n0 .*\n){2}$")

    def test_two_processes_train_one_model(self):
        self.same(DISTRIBUTED, dram="512M")

    def test_narrow_numbers(self):
        self.assertEqual(self.same(NARROW).stderr.count("RowTensor"), 2)

    def test_a_copy_that_does_not_fit_is_an_error(self):
        code = (
            "import torch; layer = torch.nn.Embedding(100000, 8, sparse=True)\n"
            "from tidepool_rows import rows; rows._available = lambda: 1000000\n"
            "try: layer.weight.detach().exp()\n"
            "except RuntimeError as error: print(error)"
        )
        found = run(sys.executable, "-c", code, far="cxl:256M")
        self.assertIn("aten.exp.default on 100000 x 8 needs a copy of 3 MiB", found.stdout)

    def test_a_copy_is_said_once(self):
        code = (
            "import torch; layer = torch.nn.Embedding(100000, 8, sparse=True)\n"
            "for _ in range(3): layer.weight.detach().exp()"
        )
        found = run(sys.executable, "-c", code, far="cxl:256M")
        self.assertEqual(
            found.stderr,
            "tidepool: rows: aten.exp.default on 100000 x 8 is worked out on a copy of 3 MiB\n",
        )


class Hook(unittest.TestCase):
    """The start-up hook of the launcher."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def test_a_program_without_torch_sees_what_it_saw(self):
        code = "import sys; print(sys.path, [name for name in sys.modules if 'tidepool' in name])"
        expected, found = plain(sys.executable, "-c", code), run(sys.executable, "-c", code, far="cxl:8M")
        self.assertEqual(found.stdout, expected.stdout)
        self.assertEqual(found.stderr, "")

    def test_the_users_own_sitecustomize_runs(self):
        self.write("sitecustomize.py", "import sys\nsys.from_user = __file__\n")
        self.write("other.py", "")
        code = "import sys, other, sitecustomize; print(sys.from_user, sitecustomize.__file__, sys.path)"
        words = (sys.executable, "-c", code)
        expected = plain(*words, PYTHONPATH=self.folder)
        found = run(*words, far="cxl:8M", PYTHONPATH=self.folder)
        self.assertEqual(found.stdout, expected.stdout)

    def test_an_error_in_it_is_told_as_ever(self):
        self.write("sitecustomize.py", "raise ValueError('mine')\n")
        words = (sys.executable, "-c", "print('on')")
        found = run(*words, far="cxl:8M", PYTHONPATH=self.folder)
        self.assertEqual(found.stdout, "on\n")
        self.assertIn("ValueError: mine", found.stderr)

    def test_modules_isolated_interpreters_and_children(self):
        show = "import torch; print(type(torch.nn.Embedding(1000, 8, sparse=True).weight).__name__)"
        self.write("program.py", show)
        cases = {
            "script": ([os.path.join(self.folder, "program.py")], "RowTensor"),
            "module": (["-m", "program"], "RowTensor"),
            "isolated": (["-I", "-c", show], "Parameter"),
            "no site": (["-S", "-c", f"import sys; sys.path.append({self.site()!r}); {show}"], "Parameter"),
            "no environment": (["-E", "-c", show], "Parameter"),
            "child": (
                ["-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {show!r}])"],
                "RowTensor",
            ),
        }
        for name, (words, expected) in cases.items():
            with self.subTest(name):
                found = run(sys.executable, *words, far="cxl:64M", PYTHONPATH=self.folder)
                self.assertEqual(found.stdout, expected + "\n", found.stderr)

    @staticmethod
    def site():
        import torch

        return os.path.dirname(os.path.dirname(torch.__file__))

    def test_off(self):
        code = "import os; print(os.environ.get('TIDEPOOL_ROWS'), os.environ.get('PYTHONPATH'))"
        found = run(sys.executable, "-c", code, far="cxl:8M", rows="off", PYTHONPATH="/nowhere")
        self.assertEqual(found.stdout, "None /nowhere\n")

    def test_a_bad_value(self):
        found = run("true", far="cxl:8M", rows="some")
        self.assertEqual(found.returncode, 2)
        self.assertIn("--rows: 'some' is neither auto, all, off nor a size", found.stderr)


if __name__ == "__main__":
    unittest.main()
