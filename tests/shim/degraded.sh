#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# degraded.sh LIBRARY WHERE: a runtime that cannot start (an impossible space) leaves the program on
# libc with one line on stderr; strict makes that exit 125; a bad value behaves the same. A program
# that is not worth managing never asks.
library=$1
where=$2
fail() {
  echo "$1"
  exit 1
}
for conf in space:1 space:lots; do
  said=$(TIDEPOOL_CONF=$conf,start:now LD_PRELOAD=$library "$where" libc 2>&1) || fail "not on libc: $said"
  [ "$(echo "$said" | wc -l)" = 1 ] || fail "more than one line: $said"
  case $said in
    "tidepool: not managing memory: "*";"*) ;;
    *) fail "said: $said" ;;
  esac
  TIDEPOOL_CONF=$conf,strict:true LD_PRELOAD=$library "$where" libc 2>/dev/null
  [ $? = 125 ] || fail "strict did not exit with 125"
done
said=$(TIDEPOOL_CONF=space:lots LD_PRELOAD=$library /bin/true 2>&1) || fail "true failed"
[ -z "$said" ] || fail "a small process parsed its options: $said"
