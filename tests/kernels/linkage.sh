#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A file compiled for one instruction set must give the linker nothing but its table: an inline function
# that the linker chose from it would run on processors that lack the instructions. Argument: the library.
set -eu
bad=$(nm -A -C "$1" | grep -E 'kernels_(scalar|avx2|avx512)\.cc\.o:' | grep -E ' [A-TV-Zuvw] ' |
  grep -vE ' [DRB] tidepool::k(Scalar|Avx2|Avx512)Kernels$' || true)
if [ -n "$bad" ]; then
  echo "These can be linked to from elsewhere:"
  echo "$bad"
  exit 1
fi
nm -C "$1" | grep -q ' [DRB] tidepool::kScalarKernels$'
echo "the kernels' files give out their tables alone"
