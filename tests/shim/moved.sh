#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# moved.sh KIND FABRICMGR LIBRARY PROGRAM [ARGS]: same.sh under a local budget of a few MiB, so that
# what the program uses has to move: KIND is `direct` (an emulated pool) or `remote` (a memory server
# of its own on loopback). Fails if nothing of any of its processes went far. DRAM sets the budget
# (8M).
kind=$1
fabricmgr=$2
shift 2
work=$(mktemp -d)
server=
reader=
finish() {
  if [ -n "$reader" ]; then kill "$reader" 2>/dev/null; fi
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
# Through a pipe, for every process of the program writes its statistics, one line each. Held open
# here, so that it does not end with the first.
mkfifo "$work/stats" || exit 1
cat "$work/stats" >"$work/lines" &
reader=$!
exec 9>"$work/stats"
EXTRA_CONF="dram:${DRAM:-8M},budget_scope:managed,far:$far,stats_file:$work/stats" \
  "$(dirname "$0")/same.sh" "$@" 9>&- || exit 1
exec 9>&-
wait "$reader"
reader=
# The last tier of a line is the far one.
most() {
  sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" "$work/lines" | sort -n | tail -1
}
demoted=$(most demoted_bytes)
used=$(most used_bytes)
echo "demoted ${demoted:-?} bytes, ${used:-?} far at the end, of the process with most"
if [ $((${demoted:-0} + ${used:-0})) = 0 ]; then
  echo "nothing went far: this has tested nothing"
  exit 1
fi
