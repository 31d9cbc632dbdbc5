#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The package lists and their installer. Nothing is installed here: dpkg and apt are stood in for.

setup() {
  SOURCE=${TIDEPOOL_SOURCE:-$BATS_TEST_DIRNAME/../..}
  INSTALL=$SOURCE/packaging/install-deps.sh
  FAKE=$BATS_TEST_TMPDIR/bin
  mkdir -p "$FAKE"
  LOG=$BATS_TEST_TMPDIR/log
  : >"$LOG"
}

# A command of that name, first on the PATH, that logs its words and then does BODY.
fake() {  # NAME BODY
  printf '#!/bin/sh\necho "%s $*" >>"%s"\n%s\n' "$1" "$LOG" "$2" >"$FAKE/$1"
  chmod +x "$FAKE/$1"
}

@test "every list names packages, one a line, none twice" {
  for list in build check demo bench programs unchanged deb python; do
    run "$INSTALL" --list $list
    [ "$status" -eq 0 ]
    [ "${#lines[@]}" -ge 3 ]
    for line in "${lines[@]}"; do [[ $line =~ ^[a-z0-9][a-z0-9+.-]+$ ]]; done
    [ -z "$(printf '%s\n' "${lines[@]}" | sort | uniq -d)" ]
  done
}

@test "with everything installed, apt is not touched" {
  fake dpkg-query 'shift 2; for p; do echo "installed $p"; done'
  fake apt-get 'exit 1'
  PATH=$FAKE:$PATH run "$INSTALL" build check
  [ "$status" -eq 0 ]
  [ -z "$output" ]
  ! grep -q apt-get "$LOG"
}

@test "only what is missing is installed, and lists are fetched only when needed" {
  fake dpkg-query 'shift 2; for p; do [ "$p" = cmake ] || echo "installed $p"; done; exit 1'
  fake apt-get 'exit 0'
  fake apt-cache 'exit 0'
  fake sudo 'shift; exec "$@"'
  PATH=$FAKE:$PATH run "$INSTALL" build
  [ "$status" -eq 0 ]
  [[ $output == *"installing: cmake"* ]]
  grep -q 'apt-get .*install --no-install-recommends cmake$' "$LOG"
  ! grep -q 'apt-get .*update' "$LOG"
}

@test "a package removed but not purged counts as missing" {
  fake dpkg-query 'shift 2; for p; do if [ "$p" = cmake ]; then echo "config-files $p"; else echo "installed $p"; fi; done'
  PATH=$FAKE:$PATH run "$INSTALL" --check build
  [ "$status" -eq 1 ]
  [[ $output == *"missing: cmake"* ]]
}

@test "a package apt does not know yet makes it fetch the lists first" {
  fake dpkg-query 'exit 1'
  fake apt-get 'exit 0'
  fake apt-cache 'exit 100'
  fake sudo 'shift; exec "$@"'
  PATH=$FAKE:$PATH run "$INSTALL" build
  [ "$status" -eq 0 ]
  grep -q 'apt-get .*update' "$LOG"
}

@test "a failing apt ends in one clear line and a failure" {
  fake dpkg-query 'exit 1'
  fake apt-get 'exit 100'
  fake apt-cache 'exit 0'
  fake sudo 'shift; exec "$@"'
  PATH=$FAKE:$PATH run "$INSTALL" build
  [ "$status" -eq 1 ]
  [[ $output == *"could not install"* ]]
}

@test "not Debian: says so, and what to install" {
  for tool in sh dirname sed tr sort; do ln -s "$(command -v $tool)" "$FAKE/$tool"; done
  PATH=$FAKE run "$INSTALL" build
  [ "$status" -eq 1 ]
  [[ $output == *"not a Debian system"* ]]
  [[ $output == *"libexpected-dev"* ]]
}

@test "no root and no sudo: says who must run what" {
  for tool in sh dirname sed tr grep sort; do ln -s "$(command -v $tool)" "$FAKE/$tool" || true; done
  fake dpkg-query 'exit 1'
  fake id 'echo 1000'
  PATH=$FAKE run "$INSTALL" build
  [ "$status" -eq 1 ]
  [[ $output == *"needs root"* ]]
  [[ $output == *"apt-get install"* ]]
}

@test "an unknown list or option is refused" {
  run "$INSTALL" nonsense
  [ "$status" -eq 2 ]
  run "$INSTALL" --nonsense
  [ "$status" -eq 2 ]
  run "$INSTALL"
  [ "$status" -eq 2 ]
}
