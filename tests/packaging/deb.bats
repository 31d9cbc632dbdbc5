#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The Debian packages: packed from the build, judged by lintian, lived with on a copy of this system.

setup_file() {
  export SOURCE=${TIDEPOOL_SOURCE:-$BATS_TEST_DIRNAME/../..}
  export BUILD=${TIDEPOOL_BUILD:-$SOURCE/build/release}
  "$SOURCE/packaging/make-deb.sh" "$BUILD"
}

@test "the packages depend on what their programs are linked with, and the preload library on libc alone" {
  depends=$(dpkg-deb -f "$BUILD"/deb/tidepool_*.deb Depends)
  for package in libc6 libevent libsqlite3 libssl libcurl libfmt; do [[ $depends == *"$package"* ]]; done
}

@test "lintian finds nothing" {
  lintian --allow-root --fail-on error,warning "$BUILD"/deb/*.deb
}

@test "installed, used, removed and purged, they leave nothing behind" {
  run "$SOURCE/tests/packaging/on_a_copy.sh" "$BATS_TEST_TMPDIR/left" \
    "$SOURCE/tests/packaging/deb_life.sh" "$BUILD/deb" "$SOURCE"
  echo "$output"
  [ "$status" -eq 0 ]
  # dpkg's own books, caches, the copies that changes of the password file leave, and systemd-analyze's time stamp.
  left=$(grep -vE '^/(var/(lib/(dpkg|systemd)|log|cache)|etc/(passwd|group|shadow|gshadow|subuid|subgid)-$|etc/\.pwd\.lock$|run/systemd/systemd-units-load$)' \
         "$BATS_TEST_TMPDIR/left" || true)
  echo "left behind: $left"
  [ -z "$left" ]
}
