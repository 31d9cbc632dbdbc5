#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What `make check` says of a machine before it builds: on one that lacks something, and in a chroot.

setup() {
  SOURCE=${TIDEPOOL_SOURCE:-$BATS_TEST_DIRNAME/../..}
  BUILD=${TIDEPOOL_BUILD:-$SOURCE/build/release}
}

# Runs a command of the source tree where the root directory is an ordinary folder, as chroot leaves it.
in_a_chroot() {
  unshare --mount --propagation private bash -c '
    set -e
    source=$(realpath "$1") place=$2; shift 2
    mount -t tmpfs tmpfs "$place"
    cd "$place"
    mkdir root source
    for folder in usr etc proc sys dev; do mkdir root/$folder; mount --rbind /$folder root/$folder; done
    for link in bin sbin lib lib64; do ln -s usr/$link root/$link; done
    mkdir root/source; mount --rbind "$source" root/source
    exec chroot root "$@"' - "$SOURCE" "$BATS_TEST_TMPDIR" "$@"
}

@test "what is missing is named with what to do, and is a failure" {
  run env PATH="$BATS_TEST_TMPDIR:$PATH" DEPS=yes bash -c '
    printf "#!/bin/sh\necho 5.4.0-1-amd64\n" >"$1/uname"; chmod +x "$1/uname"; "$2/tests/machine.sh"' - "$BATS_TEST_TMPDIR" "$SOURCE"
  echo "$output"
  [ "$status" -eq 1 ]
  [[ $output == *"missing  kernel 6.8 or newer: this is 5.4.0-1-amd64"* ]]
  [[ $output == *"nothing was built"* ]]
}

@test "a chroot is recognised; the tests that it cannot run are named, and there are such tests" {
  run in_a_chroot /source/tests/machine.sh
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *"chroot in a "* ]]
  [[ $output == *"mount --bind FOLDER FOLDER"* ]]
  run in_a_chroot /source/tests/machine.sh --left-out
  [ "${#lines[@]}" -gt 0 ]
  known=$(ctest --test-dir "$BUILD" -N)
  for line in "${lines[@]}"; do grep -qE ": ${line%% *}\$" <<<"$known"; done
}

@test "where the kernel gives no samples of faults the tests of them are named, and there are such tests" {
  printf '#!/bin/sh\nexit 1\n' >"$BATS_TEST_TMPDIR/perl"
  chmod +x "$BATS_TEST_TMPDIR/perl"
  run env PATH="$BATS_TEST_TMPDIR:$PATH" "$SOURCE/tests/machine.sh"
  echo "$output"
  [[ $output == *"without  perf events: run as root, or "* ]]
  [[ $output == *"leave out os_fault_ring_test: no samples of page faults here"* ]]
  known=$(ctest --test-dir "$BUILD" -N)
  run env PATH="$BATS_TEST_TMPDIR:$PATH" "$SOURCE/tests/machine.sh" --left-out
  for test in os_fault_ring_test migrate_foretell_test; do
    [[ $output == *"$test no samples of page faults here"* ]]
    grep -qE ": $test\$" <<<"$known"
  done
}
