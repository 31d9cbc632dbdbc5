#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The measuring tools themselves: a watcher that misses a peak, or a harness that leaves something behind,
# would make every table worthless.

bats_require_minimum_version 1.5.0

setup() {
  SOURCE=${TIDEPOOL_SOURCE:-$BATS_TEST_DIRNAME/../..}
  BUILD=${TIDEPOOL_BUILD:-$SOURCE/build/release}
  WATCH=$BUILD/bench/rss_watch
  OUT=$BATS_TEST_TMPDIR/out.json
}

value() {  # KEY: a number out of the watcher's report
  sed -n "s/.*\"$1\": \([-0-9.]*\).*/\1/p" "$OUT"
}

@test "rss_watch sees a peak that lasted a few milliseconds" {
  "$WATCH" --out "$OUT" -- /usr/bin/python3 -c '
import mmap, time
m = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(0, 64 << 20, 4096): m[i] = 1
time.sleep(0.02)
m.close()
time.sleep(0.1)'
  [ "$(value peak_anon_bytes)" -ge $((64 << 20)) ]
  [ "$(value peak_anon_bytes)" -le $((96 << 20)) ]
}

@test "rss_watch does not count shared memory as anonymous" {
  "$WATCH" --out "$OUT" --exact-ms 20 -- /usr/bin/python3 -c '
import mmap, time
m = mmap.mmap(-1, 64 << 20)
for i in range(0, 64 << 20, 4096): m[i] = 1
time.sleep(0.1)'
  [ "$(value peak_anon_bytes)" -le $((32 << 20)) ]
  [ "$(value peak_exact_anon_bytes)" -le $((32 << 20)) ]
  [ "$(value peak_rss_bytes)" -ge $((64 << 20)) ]
}

@test "rss_watch ends as the program did" {
  run "$WATCH" --out "$OUT" -- sh -c 'exit 7'
  [ "$status" -eq 7 ]
  [ "$(value exit)" -eq 7 ]
  run "$WATCH" --out "$OUT" -- sh -c 'kill -9 $$'
  [ "$status" -eq 137 ]
  [ "$(value signal)" -eq 9 ]
  run -127 "$WATCH" --out "$OUT" -- /nonexistent
  [ "$status" -eq 127 ]
  run "$WATCH" --out "$OUT" --cgroup /nonexistent -- true
  [ "$status" -eq 125 ]
}

@test "rss_watch refuses bad usage" {
  for words in "" "--" "--interval-ms x -- true" "--nonsense 1 -- true" "--out"; do
    run "$WATCH" $words
    [ "$status" -eq 2 ]
  done
}

@test "a watched program does not outlive a watcher that was told to end, or killed" {
  for signal in TERM KILL; do
    "$WATCH" --out "$OUT" -- sleep 1000 &
    watcher=$!
    program=
    until [ -n "$program" ]; do program=$(cat /proc/$watcher/task/$watcher/children); done
    kill -$signal $watcher
    wait $watcher || true
    for _ in $(seq 200); do [ -d /proc/$((program)) ] || break; sleep 0.05; done
    [ ! -d /proc/$((program)) ]
  done
}

@test "bench/run explains itself and refuses nonsense" {
  run "$SOURCE/bench/run" --help
  [ "$status" -eq 0 ]
  for name in fasttext torch gups malloc faults fits; do [[ $output == *"$name"* ]]; done
  run "$SOURCE/bench/run" nonsense
  [ "$status" -eq 2 ]
  run "$SOURCE/bench/run" fasttext --rounds 0
  [ "$status" -eq 2 ]
}

@test "the harness's own unit tests" {
  cd "$SOURCE/tests/packaging"
  PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$SOURCE/bench /usr/bin/python3 -m unittest -q harness_test
}

# Stand-ins for the two programs: `tidepool run` execs what follows "--", as the real one does.
stand_ins() {
  FAKE=$BATS_TEST_TMPDIR/build
  mkdir -p "$FAKE/bin"
  ln -s "$BUILD/bench" "$FAKE/bench"
  cat >"$FAKE/bin/tidepool" <<'EOF'
#!/bin/bash
echo "$*" >>"$(dirname "$0")/tidepool.log"
while [[ $1 != -- ]]; do
  [[ $1 == --stats ]] && echo '{"schema": 1, "wasted_migrations": 0}' >"$2"
  shift
done
shift
exec "$@"
EOF
  cat >"$FAKE/bin/fabricmgr" <<'EOF'
#!/bin/bash
echo $$ >"$(dirname "$0")/fabricmgr.pid"
echo "listening on 127.0.0.1:4242"
exec sleep 1000
EOF
  chmod +x "$FAKE"/bin/*
  export TIDEPOOL_BUILD=$FAKE TIDEPOOL_BENCH_WORK=$BATS_TEST_TMPDIR/work
}

@test "a benchmark asks for the budget and the far tier, keeps its results, and ends its memory server" {
  stand_ins
  run "$SOURCE/bench/run" faults --rounds 2 --only direct,remote
  [ "$status" -eq 0 ]
  [[ $output == *"raw 4 KiB round trip"* ]]
  [[ $output == *"emulated CXL pool"* ]]
  grep -q -- '^run --dram 134217728 --far cxl:2G --stats .* -- .*fault_latency' "$FAKE/bin/tidepool.log"
  grep -q -- '--far remote:127.0.0.1:4242:2G' "$FAKE/bin/tidepool.log"
  [ ! -d "/proc/$(cat "$FAKE/bin/fabricmgr.pid")" ]
  /usr/bin/python3 -c '
import json, sys
section = json.load(open(sys.argv[1]))["benchmarks"]["faults"]
assert section["machine"]["kernel"] and section["machine"]["commit"]
assert len(section["ways"]["direct"]) == 2 and section["ways"]["remote"][0]["stats"]["schema"] == 1
' "$TIDEPOOL_BENCH_WORK/results.json"
  [ -z "$(find "$TIDEPOOL_BENCH_WORK" -name 'run-*')" ]
}

@test "a failing way is named and the benchmark goes on" {
  stand_ins
  printf '#!/bin/sh\necho "tidepool: no userfaultfd" >&2\nexit 125\n' >"$FAKE/bin/tidepool"
  run "$SOURCE/bench/run" faults --rounds 1 --only plain,direct
  [[ $output == *"direct FAILED"*"no userfaultfd"* ]]
  [[ $output == *"plain (all its memory)"* ]]
  [ "$status" -eq 1 ]
}

# Stops a benchmark while its program runs under the peer's limit; both have to be gone then.
stopped_in_mid_run() {
  "$SOURCE/bench/run" faults --rounds 1 --only "$1" >"$BATS_TEST_TMPDIR/out" 2>&1 &
  harness=$!
  cgroup=/sys/fs/cgroup/memory/tidepool-bench-$harness
  for _ in $(seq 1200); do
    [ -n "$(cat "$cgroup/cgroup.procs" 2>/dev/null)" ] && break
    sleep 0.05
  done
  program=$(head -n1 "$cgroup/cgroup.procs")
  [ -n "$program" ]
  kill -TERM $harness
  wait $harness && status=0 || status=$?
  [ "$status" -eq 143 ]
  [ ! -d "$cgroup" ]
  [ ! -d "/proc/$program" ]
}

# Says why a peer cannot run here, and checks that the benchmark says so, too.
why_not() {
  missing=$(PYTHONPATH=$SOURCE/bench /usr/bin/python3 -B -c '
import sys
from harness import paired
print(paired.SWAPS[sys.argv[1]].why_not() or "")' "$1")
  [ -n "$missing" ] || return 1
  run "$SOURCE/bench/run" faults --rounds 1 --only "$1"
  [ "$status" -eq 1 ]
  [[ $output == *"$1 peer left out: $missing"* ]]
}

@test "stopped in mid-run, the zram peer leaves no swap, no cgroup and no process; or says why it cannot run" {
  stand_ins
  why_not zram && return
  stopped_in_mid_run zram
  # Another benchmark run may be using the device right now; ours is not.
  [ "$(cat /run/tidepool-bench-zram.lock)" != ours ] || ! flock --nonblock /run/tidepool-bench-zram.lock true
}

@test "stopped in mid-run, the NBD peer leaves no swap, no loop device, no mount and no process" {
  stand_ins
  why_not nbd && return
  stopped_in_mid_run nbd
  flock --nonblock /run/tidepool-bench-zram.lock true || return 0 # another benchmark run has set it up
  [ -z "$(grep tidepool-bench-nbd /proc/mounts)" ]
  [ -z "$(losetup --list --noheadings --output BACK-FILE | grep tidepool-bench-nbd)" ]
}
