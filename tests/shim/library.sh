#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# library.sh LIBRARY MAP: the built library needs libc alone, exports what the map lists and no
# more, binds everything at load time, and its TLS is of the initial-exec kind.
library=$1
map=$2
fail() {
  echo "$1"
  exit 1
}
needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[ "$needed" = libc.so.6 ] || fail "needs: $needed"
readelf -d "$library" | grep -q BIND_NOW || fail "not bound at load time"
readelf -d "$library" | grep -q STATIC_TLS || fail "TLS is not initial-exec"
exported=$(nm -D --defined-only "$library" | awk '{print $3}' | sort)
listed=$(sed -n '/global:/,/local:/p' "$map" | grep -v ':' | tr -d ' \n' | tr ';' '\n' | sort)
[ "$exported" = "$listed" ] || fail "exports differ from the map:
$exported
-- listed:
$listed"
if nm -D "$library" | grep -q __tls_get_addr; then fail "uses dynamic TLS"; fi
# Our own words of TLS are few; the rest is jemalloc's thread state, inline.
tls=$(readelf -lW "$library" | awk '$1 == "TLS" {print $6}')
[ $((tls)) -lt 4096 ] || fail "TLS takes $((tls)) bytes"
