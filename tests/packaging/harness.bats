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
