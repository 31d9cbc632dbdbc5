#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# moved.sh KIND FABRICMGR LIBRARY PROGRAM [ARGS]: same.sh under a local budget of a few MiB, so that
# what the program uses has to move: KIND is `direct` (an emulated pool) or `remote` (a memory server
# of its own on loopback). Prints how much of it went far. DRAM sets the budget (8M).
kind=$1
fabricmgr=$2
shift 2
work=$(mktemp -d)
server=
finish() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null; fi
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM
if [ "$kind" = remote ]; then
  "$fabricmgr" memserver --listen 127.0.0.1:0 --size 1G >"$work/out" 2>"$work/err" &
  server=$!
  tries=0
  until grep -qs '127\.0\.0\.1:[1-9]' "$work/out" "$work/err"; do
    tries=$((tries + 1))
    if [ $tries -gt 200 ]; then
      echo "the memory server did not start:"
      cat "$work/out" "$work/err"
      exit 1
    fi
    sleep 0.05
  done
  far=remote:$(sed -n 's/.*\(127\.0\.0\.1:[1-9][0-9]*\).*/\1/p' "$work/out" "$work/err" | head -1):512M
else
  far=cxl:512M
fi
EXTRA_CONF="dram:${DRAM:-8M},budget_scope:managed,far:$far,stats_file:$work/stats" \
  "$(dirname "$0")/same.sh" "$@" || exit 1
demoted=$(sed -n 's/.*"demoted_bytes": *\([0-9]*\).*/\1/p' "$work/stats")
used=$(sed -n 's/.*"used_bytes": *\([0-9]*\).*/\1/p' "$work/stats" | tail -1)
echo "demoted ${demoted:-?} bytes, ${used:-?} far at the end"
