# SPDX-License-Identifier: Apache-2.0
"""Programs of Debian, unchanged, in a quarter of their memory: the same result, and how much slower.

Their results do not depend on chance: what each prints and the file it writes are compared with the plain run's;
redis-server's contents, and its dump's, with what they must be (redis_snapshot.py).
"""

import hashlib
import os
import random
import shutil
import subprocess
import tempfile
from typing import NamedTuple

from . import corpus, paired, redis_snapshot
from .places import PYTHON, ROOT, WORK, BenchError, say
from .tables import mib, table

SHARE = 0.25  # of the plain run's peak RSS: the budget
FAR_SIZE = "4G"  # what a fork copies on write is there twice
SOURCES = ROOT / "bench" / "programs"
QUIET = {
    "LC_ALL": "C",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
}


class Program(NamedTuple):
    about: str
    needs: str  # what must be on the path
    command: object = None  # (path of the output file) -> words
    scene: object = None  # in place of it, for a server: (folder) -> its command, and who plays its client


def kept(name, make):
    """A file under build/bench that `make(path)` writes once."""
    WORK.mkdir(parents=True, exist_ok=True)
    path = WORK / name
    if not path.exists():
        say(f"programs: making {name}")
        partial = path.with_suffix(f".{os.getpid()}.part")
        make(partial)
        partial.rename(path)
    return path


def lines(path):
    """5 million lines of 20 to 60 characters, in no order."""
    generator = random.Random(7)
    with open(path, "w", encoding="ascii") as out:
        for _ in range(500):
            words = (f"{generator.getrandbits(80 + 8 * (i % 20)):x}" for i in range(10_000))
            out.write("\n".join(words) + "\n")


def preprocessed(path):
    """A C++ file of 60 functions, each with templates of its own, as the compiler proper takes it."""
    with tempfile.NamedTemporaryFile("w", suffix=".cc", encoding="ascii") as out:
        out.write("#include <map>\n#include <string>\n#include <vector>\n#include <algorithm>\n")
        for i in range(60):
            out.write(
                f"struct Key{i} {{ int a, b; bool operator<(const Key{i}& o) const "
                f"{{ return a != o.a ? a < o.a : b < o.b; }} }};\n"
                f"long work{i}(const std::vector<std::string>& words) {{\n"
                f"  std::map<Key{i}, std::string> seen;\n"
                f"  for (const auto& word : words)\n"
                f"    seen[Key{i}{{int(word.size()), {i}}}] += word;\n"
                f"  std::vector<std::pair<long, Key{i}>> order;\n"
                f"  for (const auto& [key, text] : seen) order.push_back({{long(text.size()), key}});\n"
                f"  std::sort(order.begin(), order.end());\n"
                f"  return order.empty() ? {i} : order.front().first;\n}}\n"
            )
        out.flush()
        subprocess.run(["g++", "-E", "-o", str(path), out.name], check=True)


def compiler():
    found = subprocess.run(
        ["g++", "-print-prog-name=cc1plus"], capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


def classes():
    """The folder of Churn.class."""
    folder = WORK / "java"
    subprocess.run(["javac", "-d", str(folder), str(SOURCES / "Churn.java")], check=True)
    return folder


def text(size):
    return corpus.make(size)[0]


def linked(path, output):
    """For programs that name their output after the input: the path as `output` without its suffix."""
    link = output.with_suffix("")
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    return link


def loader(size, batches):
    return Program(
        f"PyTorch DataLoader, 2 forked workers, {size} MB",
        PYTHON,
        lambda out: [PYTHON, SOURCES / "loader.py", "--mib", size, "--batches", batches],
    )


def redis(size):
    return Program(
        f"redis-server, {size} MB, BGSAVE under writes",
        redis_snapshot.BINARY,
        scene=lambda folder: redis_snapshot.Scene(size, folder),
    )


PROGRAMS = {
    "sort": Program(
        "sort -S 1G, 5 million lines",
        "sort",
        lambda out: ["sort", "-S", "1G", "--parallel=1", "-o", out, kept("lines.txt", lines)],
    ),
    "xz": Program(
        "xz -9, 20 MB of text",
        "xz",
        lambda out: ["xz", "-9", "-T1", "-k", "-f", "-S", out.suffix, linked(text(20_000_000), out)],
    ),
    "sqlite": Program(
        "sqlite3, 500 MB in memory, queries",
        "sqlite3",
        lambda out: ["sqlite3", "-batch", ":memory:", f".output {out}", f".read {SOURCES}/queries.sql"],
    ),
    "g++": Program(
        "g++ -O (cc1plus), 60 functions",
        "g++",
        lambda out: [compiler(), "-fpreprocessed", "-quiet", "-O"]
        + [kept("large.ii", preprocessed), "-o", out],
    ),
    "node": Program(
        "node, records replaced all the time",
        "node",
        lambda out: ["node", SOURCES / "churn.js"],
    ),
    "java": Program(
        "java, records replaced all the time",
        "javac",
        lambda out: ["java", "-XX:+UseSerialGC", "-Xmx1g", "-cp", classes(), "Churn"],
    ),
    "word2vec": Program(
        "gensim word2vec, 200 dimensions",
        PYTHON,
        lambda out: [PYTHON, SOURCES / "word2vec.py", text(3_000_000)],
    ),
    "torch": Program(
        "PyTorch, dlrm.py with 2 threads",
        PYTHON,
        lambda out: [PYTHON, ROOT / "bench" / "trainers" / "dlrm.py", "--threads", "2"]
        + ["--steps", "200", "--losses-only"],
    ),
    "loader": loader(800, 2000),
    "redis": redis(1000),
}
# Small enough for tests/programs.
SHORT = {"loader": loader(150, 150), "redis": redis(100)}


def chosen(names):
    """The programs asked for, less those that are not installed (said once)."""
    unknown = set(names or ()) - set(PROGRAMS)
    if unknown:
        raise BenchError(
            f"no program called {', '.join(sorted(unknown))} (known: {', '.join(PROGRAMS)})"
        )
    found = [name for name in PROGRAMS if not names or name in names]
    for name in list(found):
        if shutil.which(PROGRAMS[name].needs) is None:
            say(f"{name} left out: no {PROGRAMS[name].needs}; packaging/install-deps.sh programs")
            found.remove(name)
    return found


def digest(path):
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            hasher.update(chunk)
    return hasher.hexdigest()


def digested(program, way, budget, options):
    """One run of a program that ends by itself: what it printed and wrote is the result."""
    output = WORK / f"program-{os.getpid()}.out"
    try:
        command = [str(word) for word in program.command(output)]
        result = paired.run_way(way, command, budget, **options)
        wrote = digest(output) if output.exists() else ""
        result.extra["result"] = hashlib.sha256(result.stdout.encode()).hexdigest() + wrote
        return result
    finally:
        output.unlink(missing_ok=True)
        output.with_suffix("").unlink(missing_ok=True)


def played(program, way, budget, options):
    """One run of a server: its client knows the right answers, and raises BenchError for a wrong one."""
    scene = program.scene(WORK)
    try:
        result = paired.run_way(way, scene.command(), budget, started=scene.play, **options)
        result.extra.update(scene.check_dump(), result="as it must be")
        return result
    finally:
        scene.clear()


def one_run(name, program, way, budget):
    options = {"stats_path": paired.stats_path(name, way), "env": QUIET, "far_size": FAR_SIZE}
    return (played if program.scene else digested)(program, way, budget, options)


def measure_one(name, program, count, ways):
    """A row of the table, and the same as data."""
    say(f"{name}: a plain run first, to learn the footprint")
    first = one_run(name, program, "plain", None)
    footprint = first.watch["peak_rss_bytes"]
    budget = int(footprint * SHARE)
    results, errors = paired.rounds(name, ways, count, lambda way: one_run(name, program, way, budget))
    same = {
        way: all(run.extra["result"] == first.extra["result"] for run in runs)
        for way, runs in results.items()
        if runs
    }
    _, data = paired.report(name, results, errors, budget, same)
    row = [program.about, mib(footprint)]
    for way in ways:
        got = data["ways"][way]
        if "error" in got:
            row += ["failed", ""]
        elif way == "plain":
            row += [f"{got['median_seconds']:.1f} s"]
        else:
            peak = mib(got["peak_anon_bytes"]) + (" OVER" if got["within_budget"] is False else "")
            row += [f"{got['median_ratio']:.2f}x", peak if got["same_result"] else "DIFFERENT"]
    return row, {"about": program.about, "footprint_bytes": footprint, **data}


def measure(count, only, names=None):
    wanted = ["plain", *(only or ("direct", "remote", "zram", "nbd", "equal"))]
    ways = paired.choose(wanted, paired.ALL_WAYS)
    rows, data = [], {}
    for name in chosen(names):
        try:
            row, data[name] = measure_one(name, PROGRAMS[name], count, ways)
        except BenchError as error:
            say(f"{name}: {error}")
            row, data[name] = [PROGRAMS[name].about, "failed"], {"error": str(error)}
        rows.append(row + [""] * (1 + 2 * len(ways) - len(row)))
    header = ["", "footprint", "plain"]
    for way in ways[1:]:
        header += [way, "peak local"]
    notes = [
        f"budget: {SHARE:.0%} of the footprint; {count} rounds, order rotated; ratio to plain inside a round",
        "every result compared with the plain run's (redis: each key)",
    ]
    return table("Programs of Debian, unchanged", header, rows, notes), {"programs": data}
