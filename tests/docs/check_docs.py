#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the documents say against the repository: read-only, no network.

    check_docs.py ROOT

- every relative link of a tracked Markdown file leads to a file, and its #anchor to a heading there;
- every file of the source tree named in `backticks` exists;
- the table of transitions in docs/life-of-a-page.md is the one in runtime/space/page_state.h;
- each function that a row of a table names (`Class::function()` | `file.cc`) is in that file;
- docs/tuning.md has a row for every key of --conf;
- every message in docs/troubleshooting.md is one of the source;
- every file in docs/ is named in docs/README.md.
Prints what is wrong, one line each, and exits 1.
"""

import pathlib
import re
import sys
import urllib.parse

from run_blocks import blocks

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
CODE_SPAN = re.compile(r"`([^`]+)`")
SOURCE_PATH = re.compile(
    r"^(?:runtime|shim|fabricmgr|allocator|bench|tests|packaging|docs|cmake)/[\w./-]+\.\w+$"
)
STEP = re.compile(r"`(?:\w+::)*(\w+)\(\)`[^|]*\|\s*`([\w./]+\.(?:h|cc))`")


def prose(text):
    """`text` with the lines of fenced blocks blanked, so that line numbers stay."""
    lines = text.splitlines()
    for start, _, body in blocks(text):
        for at in range(start - 1, start + body.count("\n") + 1):
            lines[at] = ""
    return lines


def anchor(heading):
    """GitHub's anchor for a heading."""
    text = re.sub(r"[`*]", "", LINK.sub(lambda match: match.group(0), heading)).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path):
    found = set()
    for line in prose(path.read_text()):
        match = HEADING.match(line)
        if match:
            name, number = anchor(match.group(1)), 0
            while (name if not number else f"{name}-{number}") in found:
                number += 1
            found.add(name if not number else f"{name}-{number}")
    return found


def check_links(path):
    for number, line in enumerate(prose(path.read_text()), 1):
        for target in LINK.findall(line):
            url = urllib.parse.urlsplit(target)
            if url.scheme or url.netloc:
                continue
            goal = path.parent / urllib.parse.unquote(url.path) if url.path else path
            if not goal.exists():
                yield f"{path}:{number}: {target} leads nowhere"
            elif url.fragment and goal.suffix == ".md" and url.fragment not in anchors(goal):
                yield f"{path}:{number}: {goal.name} has no heading #{url.fragment}"


def check_paths(root, path):
    for number, line in enumerate(prose(path.read_text()), 1):
        for span in CODE_SPAN.findall(line):
            if SOURCE_PATH.match(span) and not (root / span).exists():
                yield f"{path}:{number}: there is no {span}"


def transitions_of_code(header):
    """{from: {to}} of kTransitions, and of the rule that anything may become kEmpty."""
    table = header[header.index("kTransitions[kPageStates] = {") :]
    table = table[: table.index("};")]
    rows = re.split(r"/\*\s*(k\w+)\s*\*/", table)[1:]
    return {
        state: set(re.findall(r"PageState::(k\w+)", body))
        for state, body in zip(rows[::2], rows[1::2])
    }


def transitions_of_document(text):
    """{from: {to}} of the rows `kFrom` | `kTo` | ... of the document's tables."""
    found = {}
    for start, goal in re.findall(r"^\| `(k[A-Z]\w+)` \| `(k[A-Z]\w+)` \|", text, re.MULTILINE):
        found.setdefault(start, set()).add(goal)
    return found


def check_page_states(root):
    document = root / "docs/life-of-a-page.md"
    code = transitions_of_code((root / "runtime/space/page_state.h").read_text())
    text = document.read_text()
    told = transitions_of_document(text)
    for state in sorted(code.keys() | told.keys()):
        for goal in sorted(code.get(state, set()) ^ told.get(state, set())):
            where = "only the code" if goal in code.get(state, set()) else "only the document"
            yield f"{document}: {where} allows {state} -> {goal}"


def check_steps(root, path):
    for name, file in STEP.findall(path.read_text()):
        source = root / file
        if source.is_file() and not re.search(rf"\b{name}\(", source.read_text()):
            yield f"{path}: {file} has no {name}()"


def check_tuning(root):
    document = root / "docs/tuning.md"
    code = (root / "runtime/options.cc").read_text()
    keys = re.search(r"kOptions\[\] = \{(.*?)\};", code, re.DOTALL).group(1)
    text = document.read_text()
    for key in re.findall(r'"(\w+)"', keys):
        if f"| `{key}` |" not in text:
            yield f"{document}: has no row for the key {key}"


def check_messages(root):
    """The first cells of the tables, in `backticks`, with `...` for what is filled in."""
    document = root / "docs/troubleshooting.md"
    if not document.exists():
        return
    sources = (path for folder in ("runtime", "shim", "allocator", "fabricmgr") for path in (root / folder).rglob("*.cc"))
    # Adjacent literals are one; a lone { or % begins what is filled in.
    said = "\n".join(re.sub(r'"\s*"', "", path.read_text()) for path in sources).replace('\\"', '"')
    for number, line in enumerate(prose(document.read_text()), 1):
        match = re.match(r"^\| (`[^|]*`) \|", line)
        for span in CODE_SPAN.findall(match.group(1)) if match else ():
            for piece in span.split("..."):
                if piece.strip(" :,()'") and piece.strip(" :,()'") not in said:
                    yield f"{document}:{number}: no source says '{piece.strip()}'"


def check_index(root):
    index = (root / "docs/README.md").read_text()
    for path in sorted((root / "docs").glob("*.md")):
        if path.name != "README.md" and f"({path.name})" not in index:
            yield f"docs/README.md: does not name {path.name}"


def documents(root):
    skipped = {"build", ".git"}
    return sorted(
        path
        for path in root.rglob("*.md")
        if not skipped & set(path.relative_to(root).parts)
    )


def problems(root):
    for path in documents(root):
        yield from check_links(path)
        yield from check_paths(root, path)
        yield from check_steps(root, path)
    yield from check_page_states(root)
    yield from check_tuning(root)
    yield from check_messages(root)
    yield from check_index(root)


def main(arguments):
    if len(arguments) != 1:
        print("usage: check_docs.py ROOT", file=sys.stderr)
        return 2
    found = list(problems(pathlib.Path(arguments[0]).resolve()))
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
