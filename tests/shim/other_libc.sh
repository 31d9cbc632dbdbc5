#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# other_libc.sh TIDEPOOL MUSL_GCC STARTS: a program of another C library is refused with one clear
# line; as the child of a program it runs, without Tidepool, however it is started.
tidepool=$1
musl_gcc=$2
starts=$3
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
fail() {
  echo "$1"
  cat "$work"/out "$work"/err
  exit 1
}
cat > "$work/hello.c" <<'END'
#include <stdio.h>
#include <stdlib.h>
int main(int count, char** arguments) {
  printf("%d %s %s\n", count, getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : "-", getenv("OTHER"));
  return 7;
}
END
"$musl_gcc" -o "$work/hello" "$work/hello.c" || exit 1
printf '#!%s\n' "$work/hello" > "$work/script"
chmod +x "$work/script"
export OTHER=kept PATH="$work:$PATH"
"$tidepool" run -- "$work/hello" > "$work/out" 2> "$work/err"
[ $? = 125 ] || fail "it was not refused"
grep -q 'another C library.*ld-musl' "$work/err" || fail "the refusal does not say why"
LD_AUDIT=/nonexistent.so "$tidepool" run -- /bin/true > "$work/out" 2> "$work/err"
[ $? = 125 ] || fail "it was not refused under an audit library"
grep -q 'optional_static_tls' "$work/err" || fail "the refusal does not say what to do"
for program in hello script; do
  "$starts" "$work/$program" > "$work/plain" 2>&1
  "$tidepool" run -- "$starts" "$work/$program" > "$work/out" 2> "$work/err" || fail "starts failed"
  sed 's/ LD_PRELOAD=[^ ]*//; s/^\([0-9]*\)  */\1 /; s/\([0-9]\)  *kept/\1 - kept/' "$work/out" > "$work/same"
  diff "$work/plain" "$work/same" || fail "$program: not as without Tidepool"
  [ "$(grep -c 'runs without Tidepool' "$work/err")" -ge 11 ] || fail "$program: no line says so"
done
"$tidepool" run -- sh -c "$work/hello; exit 3" > "$work/out" 2> "$work/err"
[ $? = 3 ] || fail "the shell's child"
grep -q '^1 ' "$work/out" || fail "the shell's child did not run"
exit 0
