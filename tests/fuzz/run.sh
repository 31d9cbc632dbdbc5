#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a fuzzing program from its own seeds and the inputs that have once found a fault. Short, the
# same each time: COUNT runs from a fixed number. Long: for COUNT seconds from a number of its own;
# what it finds worth keeping stays in the build for the next time. An input that fails is left there,
# too: mend the fault, and put the input into tests/fuzz/corpus/NAME, which every check runs.
#   run.sh runs|seconds COUNT BUILD/bin/fuzz_NAME
set -euo pipefail
how=$1 count=$2 program=$3
here=$(cd "$(dirname "$0")" && pwd)
name=$(basename "$program")
name=${name#fuzz_}
folder=$(dirname "$program")/../fuzz/$name
symbolizer=external_symbolizer_path=/usr/lib/llvm-19/bin/llvm-symbolizer
export ASAN_OPTIONS=${ASAN_OPTIONS:-abort_on_error=1:detect_stack_use_after_return=1:$symbolizer}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1:$symbolizer}
found=$folder/$how
if [[ $how == runs ]]; then
  rm -rf "$found"
  limits=(-runs="$count" -seed=1)
else
  limits=(-max_total_time="$count")
fi
rm -rf "$folder/seeds"
mkdir -p "$found" "$folder/seeds" "$folder/faults"
TIDEPOOL_FUZZ_SEEDS=$folder/seeds "$program"
corpus=("$found" "$folder/seeds")
[[ ! -d $here/corpus/$name ]] || corpus+=("$here/corpus/$name")
[[ ! -f $here/$name.dict ]] || limits+=(-dict="$here/$name.dict")
exec "$program" "${limits[@]}" -artifact_prefix="$folder/faults/" -max_len=20000 -timeout=60 \
  -print_final_stats=1 "${corpus[@]}"
