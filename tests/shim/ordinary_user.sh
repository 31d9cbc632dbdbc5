#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ordinary_user.sh LIBRARY PROGRAM: a user without the right to userfaultfd gets one line on stderr and
# the program's own output and status; strict gives 125. Runs PROGRAM from a copy that the user can
# reach. As root it becomes nobody; otherwise the current user must be without the right.
fail() {
  echo "$1"
  exit 1
}
work=$(mktemp -d /tmp/tidepool-user-XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cp "$1" "$work/preload.so"
cp "$2" "$work/program"
chmod 755 "$work/preload.so" "$work/program"
as() { "$@"; }
if [ "$(id -u)" = 0 ]; then
  as() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
fi
if as test -r /dev/userfaultfd || [ "$(cat /proc/sys/vm/unprivileged_userfaultfd)" = 1 ]; then
  fail "this machine gives userfaultfd to everyone; the test needs one that does not"
fi
plain=$(as "$work/program" exit 2>/dev/null)
status=$?
out=$(as env LD_PRELOAD="$work/preload.so" TIDEPOOL_CONF=start:now "$work/program" exit 2>"$work/err")
[ $? = $status ] || fail "the status changed: $(cat "$work/err")"
[ "$out" = "$plain" ] || fail "the output changed: $out"
[ "$(wc -l <"$work/err")" = 1 ] || fail "not one line: $(cat "$work/err")"
grep -q '^tidepool: not managing memory: .*userfaultfd' "$work/err" || fail "said: $(cat "$work/err")"
as env LD_PRELOAD="$work/preload.so" TIDEPOOL_CONF=strict:true "$work/program" exit 2>/dev/null
[ $? = 125 ] || fail "strict did not exit with 125"
