#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make check`, once the packages are there: release build and every test in it, then unit tests under sanitizers: those
# of the fabric manager under ASan+UBSan and under TSan, and those of runtime/ or of allocator/ under one of the
# two, which is another quarter for another commit. A test that was skipped or not
# run counts as a failure; tests that the machine cannot run at all (tests/machine.sh says which, and why) are left out,
# named and counted.
# Nothing is built while tests run: where a processor must be interrupted for each page that moves, even a
# build with the lowest priority doubles their time.
#   TIDEPOOL_CHECK=release   only the first half
#   TIDEPOOL_CHECK=sanitize  all of the second half under both, which is `make sanitize`
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
half=${TIDEPOOL_CHECK:-all}
export CTEST_OUTPUT_ON_FAILURE=1
# Few, loud, and fatal: a sanitizer report is a failed test.
symbolizer=external_symbolizer_path=/usr/lib/llvm-19/bin/llvm-symbolizer
export ASAN_OPTIONS=${ASAN_OPTIONS:-abort_on_error=1:detect_stack_use_after_return=1:$symbolizer}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1:$symbolizer}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:history_size=4:$symbolizer}

# Where there is a compiler cache, what another clone has compiled is not compiled again.
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER-ccache}
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
  export CCACHE_DIR=${CCACHE_DIR-$(ccache -k cache_dir)}  # builders of packages have a home of their own
  export CCACHE_BASEDIR=${CCACHE_BASEDIR-$PWD} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR-1}
fi

step() { printf '\n== %s  [%dm%02ds]\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

build() {  # PRESET [TARGET...]
  local log=build/$1-configure.log
  mkdir -p build
  cmake --preset "$1" -DTIDEPOOL_TESTS=ON >"$log" 2>&1 || { cat "$log"; return 1; }
  cmake --build --preset "$1" -j"$jobs" ${2:+--target "${@:2}"}
}

# Runs ctest over a build and fails on failures, on skips and on an empty test list. What the machine cannot run is
# left out.
run_tests() {  # PRESET TIMEOUT-SECONDS [CTEST ARGS...]
  local preset=$1 timeout=$2 report=build/$1-tests.xml
  local -a fixed=() without=()
  shift 2
  rm -f "$report"
  # TSan's shadow memory cannot stand a widely randomised address space.
  if [[ $preset == tsan ]] && setarch "$(uname -m)" -R true 2>/dev/null; then
    fixed=(setarch "$(uname -m)" -R)
  fi
  [[ -z $left_out ]] || without=(-E "^($(cut -d' ' -f1 <<<"$left_out" | paste -sd '|'))$")
  "${fixed[@]}" ctest --test-dir "build/$preset" --no-tests=error --progress --timeout "$timeout" \
    --output-junit "$PWD/$report" "$@" "${without[@]}"
  local skipped
  skipped=$(sed -n 's/.*<testcase name="\([^"]*\)".*status="\(notrun\|disabled\)".*/\1/p' "$report")
  if [[ -n $skipped ]]; then
    echo "check: skipped or not run, which counts as failed: $skipped"
    return 1
  fi
  tested+=("$preset, $(sed -n '0,/tests="/s/^\ttests="\([0-9]*\)"/\1/p' "$report") tests")
}

tested=()
left_out=$(tests/machine.sh --left-out)
if [[ $half != sanitize ]]; then
  step "release build"
  build release
  step "release tests"
  # Those that measure or limit what the machine has run alone (RUN_SERIAL); the others two at a time.
  run_tests release 600 -LE soak -j2
fi
if [[ $half != release ]]; then
  presets=(asan-ubsan tsan)
  commit=$(git rev-parse HEAD 2>/dev/null || echo 0)
  turn=$((16#${commit: -1}))
  for number in 0 1; do
    preset=${presets[number]}
    parts=(fabricmgr)
    if [[ $half == sanitize ]]; then
      parts+=(runtime allocator)
    elif ((turn % 2 == number)); then
      ((turn / 2 % 2)) && parts+=(allocator) || parts+=(runtime)
    fi
    targets=("${parts[@]/%/_tests}")
    [[ $preset == tsan ]] || targets+=(fuzzers)
    labels=$(IFS='|'; echo "^(${parts[*]}|fuzz)\$")
    step "$preset build (${targets[*]})"
    build "$preset" "${targets[@]}"
    step "$preset tests"
    ((${#tested[@]} == 0)) || printf 'passed so far: %s\n' "${tested[@]}"
    # Two at a time: what sanitizers look for does not depend on who else runs.
    run_tests "$preset" 600 -LE soak -L "$labels" -j2
  done
fi
echo
printf 'check: passed: %s\n' "${tested[@]}"
[[ -z $left_out ]] || printf 'check: left out, %d that this machine cannot run:\n%s\n' "$(wc -l <<<"$left_out")" "$left_out"
