#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# mapping_names.sh LIBC MAP LIST: every function of the C library that takes part in mappings is
# interposed (MAP), or LIST says why not. A newer C library with another one makes this fail.
libc=$1
map=$2
list=$3
about='map|madv|advise|protect|shm|^(__)?s?brk$|mlock|munlock|msync|mincore|pkey|userfault|process_vm|mseal|memfd|mremap'
ours=$(sed -n '/global:/,/local:/p' "$map" | grep -v ':' | tr -d ' \n' | tr ';' '\n')
excused=$(sed -n 's/^\([a-z_0-9]*\)  *[^ ].*/\1/p' "$list")
names=$(nm -D --defined-only "$libc" | awk '$2 ~ /^[TWi]$/ {sub(/@.*/, "", $3); print $3}' | sort -u |
        grep -E "$about")
[ -n "$names" ] || { echo "no names in $libc"; exit 1; }
status=0
for name in $names; do
  printf '%s\n%s\n' "$ours" "$excused" | grep -qx "$name" && continue
  echo "$name takes part in mappings, by its name: interpose it (shim/preload.map), or say in $list why not"
  status=1
done
for name in $excused; do
  printf '%s\n' "$ours" | grep -qx "$name" || continue
  echo "$name is interposed, and $list says why it is not"
  status=1
done
exit $status
