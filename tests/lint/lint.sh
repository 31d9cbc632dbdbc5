#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make lint`: what can be said of the sources without building them. Every line it prints is a
# finding; exits 1 if there are any.
#   format      C and C++: clang-format 14, Debian 12's own, by .clang-format
#   widths      lines of at most 100 columns, which clang-format leaves in comments and texts; no tabs, no
#               blanks at the end of a line. Tables between "clang-format off" and "on" may be as wide as they need.
#   shells      shellcheck, every script
#   pyflakes    every Python file
#   cppcheck    its warnings; what is passed over, and why, is in tests/lint/cppcheck.txt
#   tidy        clang-tidy, by .clang-tidy. Only if it is named: it needs a configured build/tidy, and twenty
#               minutes of processor time
# lint.sh [CHECK...]: only these.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
(($# > 0)) || set -- format widths shells pyflakes cppcheck
findings=$(mktemp)
trap 'rm -f "$findings"' EXIT

# The files of the tree with these endings, without what is built.
sources() {
  find allocator bench fabricmgr packaging runtime shim tests -type f \( "$@" \) -not -path '*/build/*' | sort
}
scripts() {
  find .ci allocator bench fabricmgr packaging runtime shim tests -type f -not -name '*.py' -print0 |
    xargs -0 awk 'FNR == 1 { if (/^#!.*[\/ ](ba)?sh/) print FILENAME; nextfile }'
}
pythons() {
  sources -name '*.py'
  echo setup.py
}

sources_in_c() {
  sources -name '*.cc' -o -name '*.h' -o -name '*.hpp' -o -name '*.c'
}

check_format() {
  sources_in_c | xargs clang-format-14 --dry-run 2>&1 | sed -n 's/warning: code should be/code is not/p' || true
}
check_widths() {
  sources_in_c | xargs awk '
    FNR == 1 { table = 0 }
    /clang-format off/ { table = 1 }
    /clang-format on/ { table = 0 }
    !table && length > 100 { print FILENAME ":" FNR ": " length " columns" }
    /\t/ { print FILENAME ":" FNR ": a tab" }
    /[ \r]$/ { print FILENAME ":" FNR ": a blank at the end" }'
}
check_shells() {
  # shellcheck disable=SC2046  # no script has a blank in its name
  shellcheck --format=gcc --external-sources $(scripts) || true
}
check_pyflakes() {  # which does not know that "# noqa" says what is meant to be so
  pythons | xargs pyflakes3 | while IFS=: read -r file line said; do
    sed -n "${line}p" "$file" | grep -q '# noqa' || echo "$file:$line:$said"
  done || true
}
check_cppcheck() {
  local -a how=(--quiet --std=c++20 --language=c++ --inline-suppr -I . -I allocator/include
    --library=posix --library=googletest --suppressions-list="$here/cppcheck.txt"
    --template='{file}:{line}: {message} [{id}]')
  cppcheck "${how[@]}" -j"${JOBS:-$(nproc)}" --enable=warning,performance,portability \
    -i allocator/python allocator fabricmgr runtime shim 2>&1  # pybind11's macros are beyond it
}

check_tidy() {
  find allocator fabricmgr runtime shim -name '*.cc' -not -path '*/python/*' -print0 |
    xargs -0 -n4 -P"${JOBS:-$(nproc)}" clang-tidy-19 --quiet -p build/tidy 2>/dev/null |
    sed -n "s#^$PWD/\(.*\(warning\|error\): \)#\1#p" | sort -u || true
}

# A tool that is not there finds nothing, which must not look like a clean tree.
for tool in clang-format-14 shellcheck pyflakes3 cppcheck clang-tidy-19; do
  command -v "$tool" >/dev/null || { echo "lint: $tool is missing: packaging/install-deps.sh check"; exit 1; }
done
for check in "$@"; do
  "check_$check" | sed "s/^/$check: /" >>"$findings"
done
cat "$findings"
[[ ! -s $findings ]]
