#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes one place of a source at a time and asks whether its unit tests notice.

mutate.py [OPTION...] [CLASS...]      CLASS: one of those in tests/mutation/classes.txt; all of them if none is named

For each mutant (a condition negated, a comparison, operator or constant exchanged, a statement left out) the
source is compiled from a copy, linked in front of the library, and the test programs are run. A mutant is
killed if a test fails, crashes, or takes ten times as long as it does with the source as it is; it survives if all pass. The
tree and the build folder are not changed. What is not the protocol is left alone: messages, statistics, checks
of invariants, and the order of memory operations, which tests on x86-64 cannot tell apart.

tests/mutation/classes.txt names the classes with their sources and tests, and the mutants that no test could
kill, since they do the same, with the reason. Those are counted apart.
Exits 1 if a class has fewer killed than --least per cent, 2 if something cannot be built.
"""
import argparse
import concurrent.futures
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Lines that say or count something, or check what must hold anyway.
PASSED_OVER = re.compile(r"TP_D?CHECK|static_assert|reportError|logLine|recordLatency|countSampling|stats->|memory_order_\w+ *=")
SWAPS = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ", " && ": " || ",
         " || ": " && ", " + ": " - ", " - ": " + ", " += ": " -= ", " -= ": " += ", "true": "false", "false": "true"}
OPERATOR = re.compile(r" (?:<|<=|>|>=|==|!=|&&|\|\||\+|-|\+=|-=) |\btrue\b|\bfalse\b")
# What can stand alone and be left out: a call, an assignment, a step of the flow.
STATEMENT = re.compile(r"(?:[\w:.>\[\]*-]|\(\*?[\w.>-]+\))+(?:\(.*\)| (?:=|\+=|-=|\|=|&=) .*)|(?:\+\+|--)[\w.>\[\]-]+|break|continue|return",
                       re.S)
DECLARES = re.compile(r"(?:const|auto|using|delete|throw|case|default|co_return)\b|\w[\w:<>,]*(?: \w[\w:<>,]*)*[ *&]+\w+(?: =|\(|;|$)")


def give_up(text):
    print(f"mutate: {text}", file=sys.stderr)
    sys.exit(2)


class Mutant:
    def __init__(self, path, text, start, end, new):
        self.path, self.start, self.end, self.new = path, start, end, new
        self.old = text[start:end]
        self.line = text.count("\n", 0, start) + 1
        begin, stop = text.rfind("\n", 0, start) + 1, text.find("\n", end)
        shown = text[begin:start] + "[" + self.old + " -> " + (new or "nothing") + "]" + text[end:stop]
        self.shown = " ".join(shown.split())
        self.verdict = ""

    def apply(self, text):
        return text[:self.start] + self.new + text[self.end:]


def code_of(text):
    """The text without what comments, strings and preprocessor lines say, at the same offsets."""

    def blank(match):
        return re.sub(r"[^\n]", '"' if match.group()[0] in "\"'" else " ", match.group())
    return re.sub(r"//[^\n]*|/\*.*?\*/|^\s*#[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])'", blank, text, flags=re.S | re.M)


def closing(code, at):
    """Behind the parenthesis that closes the one at `at`."""
    depth = 0
    for i in range(at, len(code)):
        depth += {"(": 1, ")": -1}.get(code[i], 0)
        if depth == 0:
            return i + 1
    return len(code)


def statements(code):
    """(start, end) of what stands between ; { } and a ;"""
    start, depth = 0, 0
    for i, character in enumerate(code):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character in "{}" or (character == ";" and depth == 0):
            if character == ";":
                yield start + len(code[start:i]) - len(code[start:i].lstrip()), i
            start = i + 1
            depth = 0 if character in "{}" else depth


def mutants_of(path, text):
    code = code_of(text)
    found = []

    def add(start, end, new):
        around = code[code.rfind(";", 0, start) + 1:code.find(";", start)]
        if not PASSED_OVER.search(around.rsplit("{", 1)[-1]):
            found.append(Mutant(path, text, start, end, new))

    for match in re.finditer(r"\b(?:if|while) \(", code):
        inside, end = match.end(), closing(code, match.end() - 1) - 1
        condition = text[inside:end]
        if ";" not in condition and "= " not in re.sub(r"[=!<>]= ", "", condition):
            add(inside, end, f"!({condition})")
    for match in OPERATOR.finditer(code):
        add(match.start(), match.end(), SWAPS[match.group()])
    for start, end in statements(code):
        body = re.sub(r"^(?:if|while|for) \(", "(", code[start:end])
        at = start
        while body.startswith("("):  # the statement behind a condition
            at = closing(code, code.index("(", at))
            at += len(code[at:end]) - len(code[at:end].lstrip())
            body = re.sub(r"^(?:if|while|for) \(", "(", code[at:end])
            if not code[at:end].strip() or body == code[at:end]:
                break
        body = code[at:end]
        if STATEMENT.fullmatch(body.strip()) and not DECLARES.match(body):
            add(at, end, "")
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end))


class Builder:
    """Compiles copies of one source and links them with the tests, in a folder of its own."""

    def __init__(self, build, path, tests, folder):
        self.build, self.path, self.tests, self.folder = build, path, tests, folder
        commands = json.loads((build / "compile_commands.json").read_text())
        source = str(ROOT / path)
        found = [entry["command"] for entry in commands if entry["file"] == source]
        if not found:
            give_up(f"{build} is not a build of {source}")
        self.compile = [word for word in shlex.split(found[0]) if word != "ccache"]
        self.links = []
        for test in tests:
            asked = subprocess.run(["ninja", "-C", build, "-t", "commands", test], capture_output=True, text=True)
            if asked.returncode != 0:
                give_up(f"{build} has no test program {test}, which is to notice changes of {path}: write it, "
                        "configure again, or name another")
            lines = asked.stdout.splitlines()
            link = next(line for line in reversed(lines) if f"-o bin/{test} " in line)
            self.links.append((test, shlex.split(link.removeprefix(": && ").removesuffix(" && :"))))
        self.limits = {}

    def run(self, words, limit=600):
        # A mutant may ask for memory without end, or hang; what it started ends with it.
        process = subprocess.Popen(["prlimit", "--core=0", "--data=8589934592", *map(str, words)], cwd=self.build,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True)
        try:
            said = process.communicate(timeout=limit)[0]
            return process.returncode, said
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.communicate()

    def compile_copy(self, text, name):
        """Compiles `text` as the source, into a folder of that name; false and what was said if it cannot be."""
        folder = self.folder / name
        folder.mkdir()
        source = folder / Path(self.path).name
        source.write_text(text)
        compiled = list(self.compile)
        compiled[compiled.index("-o") + 1] = str(folder / "mutant.o")
        compiled[compiled.index("-c") + 1] = str(source)
        compiled += ["-w", "-O0"]  # in half the time
        code, said = self.run(compiled)
        return code == 0, said

    def link_copy(self, test, link, name):
        """The test program with it; none and what was said if it cannot be linked."""
        folder = self.folder / name
        words = list(link)
        words[words.index("-o") + 1] = str(folder / test)
        words.insert(words.index("-o"), str(folder / "mutant.o"))
        code, said = self.run(words)
        return (folder / test if code == 0 else None), said

    def measure(self):
        """The tests with the source as it is: they must pass, and say how long they may take."""
        compiled, said = self.compile_copy((ROOT / self.path).read_text(), "unchanged")
        for test, link in self.links:
            program, said = self.link_copy(test, link, "unchanged") if compiled else (None, said)
            if program is None:
                give_up(f"{self.path} cannot be built from a copy:\n{said}")
            began = time.monotonic()
            code, said = self.run([program, "--gtest_brief=1"])
            if code != 0:
                give_up(f"{test} fails without a mutant:\n{said}")
            self.limits[test] = 10 + 10 * (time.monotonic() - began)

    def judge(self, mutant, number):
        compiled, _ = self.compile_copy(mutant.apply((ROOT / self.path).read_text()), str(number))
        verdict = "survived" if compiled else "does not compile"
        for test, link in self.links if compiled else ():
            # One after the other: most mutants need the first alone.
            program, _ = self.link_copy(test, link, str(number))
            if program is None:
                verdict = "does not compile"
                break
            code, said = self.run([program, "--gtest_brief=1"], self.limits[test])
            if code != 0:
                failed = re.search(r"FAILED  \] (\S+)", said)
                why = "hung" if code is None else failed.group(1) if failed else f"ended with {code}"
                verdict = f"killed by {test}: {why}"
                break
        for file in (self.folder / str(number)).iterdir():
            file.unlink()
        return verdict


def read_classes(path):
    """{class: (sources, tests)} and {(file, what the mutant looks like): why it is the same}"""
    classes, same = {}, {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        kind, _, rest = line.partition(" ")
        parts = [part.strip() for part in rest.split(" | ")]
        if kind == "class" and len(parts) == 3:
            classes[parts[0]] = (parts[1].split(), parts[2].split())
        elif kind == "same" and len(parts) == 3:
            same[parts[0], parts[1]] = parts[2]
        else:
            give_up(f"{path}:{number}: neither 'class NAME | SOURCES | TESTS' nor 'same FILE | MUTANT | WHY'")
    return classes, same


def run_class(name, sources, tests, same, options, folder):
    mutants = [mutant for source in sources for mutant in mutants_of(source, (ROOT / source).read_text())]
    if options.sample and options.sample < len(mutants):
        mutants = random.Random(options.seed).sample(mutants, options.sample)
        mutants.sort(key=lambda mutant: (mutant.path, mutant.start))
    builders = {}
    for source in sources:
        (folder / name / source.replace("/", "_")).mkdir(parents=True)
        builders[source] = Builder(options.build, source, tests, folder / name / source.replace("/", "_"))
        builders[source].measure()

    def judge(number):
        mutant = mutants[number]
        if (mutant.path, mutant.shown) in same:
            mutant.verdict = "the same: " + same[mutant.path, mutant.shown]
        else:
            mutant.verdict = builders[mutant.path].judge(mutant, number)
        return mutant

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done, mutant in enumerate(pool.map(judge, range(len(mutants))), 1):
            if options.verbose or mutant.verdict == "survived":
                print(f"{mutant.path}:{mutant.line}: {mutant.verdict}: {mutant.shown}", flush=True)
            if sys.stderr.isatty():
                print(f"\r{name} {done}/{len(mutants)} ", end="", file=sys.stderr, flush=True)
    killed = sum(mutant.verdict.startswith("killed") for mutant in mutants)
    survived = sum(mutant.verdict == "survived" for mutant in mutants)
    equal = sum(mutant.verdict.startswith("the same") for mutant in mutants)
    rate = 100 * killed / max(1, killed + survived)
    print(f"{name}: {killed} of {killed + survived} killed, {rate:.0f} %; {equal} do the same, "
          f"{len(mutants) - killed - survived - equal} do not compile", flush=True)
    return {"class": name, "killed": killed, "survived": survived, "same": equal, "rate": round(rate, 1),
            "mutants": [{"file": mutant.path, "line": mutant.line, "mutant": mutant.shown, "verdict": mutant.verdict}
                        for mutant in mutants]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog="The rest is at the head of the file.")
    parser.add_argument("classes", nargs="*", metavar="CLASS")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="a build with its tests (%(default)s)")
    parser.add_argument("--list", type=Path, default=ROOT / "tests/mutation/classes.txt", help="classes, and mutants that do the same")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at once (%(default)s)")
    parser.add_argument("--sample", type=int, metavar="N", help="only N mutants of each class, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=float, default=0, metavar="PER_CENT", help="exit 1 if a class has fewer killed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every mutant and its verdict")
    parser.add_argument("--verbose", action="store_true", help="print killed mutants, too")
    options = parser.parse_args()
    options.build = options.build.resolve()
    classes, same = read_classes(options.list)
    unknown = [name for name in options.classes if name not in classes]
    if unknown:
        parser.error(f"no class {unknown[0]} in {options.list}; there are {', '.join(classes)}")
    if not (options.build / "compile_commands.json").exists():
        parser.error(f"nothing is built in {options.build}: cmake --preset release -DTIDEPOOL_TESTS=ON, and build the tests")
    reports = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in options.classes or classes:
            reports.append(run_class(name, *classes[name], same, options, Path(folder)))
    if options.json:
        options.json.write_text(json.dumps(reports, indent=1) + "\n")
    return any(report["rate"] < options.least for report in reports)


if __name__ == "__main__":
    sys.exit(main())
