#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The installed tree: staged under a temporary DESTDIR, used from there by pkg-config and CMake.

setup() {
  SOURCE=${TIDEPOOL_SOURCE:-$BATS_TEST_DIRNAME/../..}
  BUILD=${TIDEPOOL_BUILD:-$SOURCE/build/release}
  STAGE=$BATS_FILE_TMPDIR/stage
  PREFIX=$STAGE/opt/tidepool
  if [ ! -d "$STAGE" ]; then
    DESTDIR=$STAGE cmake --install "$BUILD" --prefix /opt/tidepool >"$BATS_FILE_TMPDIR/install.log"
  fi
  LIBDIR=$(dirname "$(dirname "$(find "$PREFIX" -name tidepool.pc)")")
}

@test "nothing is installed outside DESTDIR/PREFIX" {
  [ -d "$PREFIX" ]
  [ -z "$(find "$STAGE" -type f ! -path "$PREFIX/*")" ]
  ! grep -E '^-- (Installing|Up-to-date): ' "$BATS_FILE_TMPDIR/install.log" | grep -v "$PREFIX"
}

@test "every program and library that was built is installed" {
  for path in bin/tidepool bin/fabricmgr; do
    [ ! -e "$BUILD/$path" ] || [ -x "$PREFIX/$path" ]
  done
  for name in libtidepool-preload.so libtidepool_runtime.a; do
    [ -z "$(find "$BUILD/lib" -name $name)" ] || [ -e "$LIBDIR/$name" ]
  done
}

@test "no installed program or library needs a library of the build tree" {
  for file in "$PREFIX"/bin/* "$LIBDIR"/*.so; do
    [ -f "$file" ] || continue
    ! readelf -d "$file" | grep -E 'R(UN)?PATH.*build/'
  done
}

@test "installed headers need nothing that is not installed" {
  cd "$PREFIX/include/tidepool"
  while read -r header; do
    echo "#include \"$header\"" >"$BATS_TEST_TMPDIR/one.cc"
    ${CXX:-c++} -std=c++20 -fsyntax-only -I . "$BATS_TEST_TMPDIR/one.cc"
  done < <(find . -name '*.h' -o -name '*.hpp' | sed 's|^\./||')
}

@test "pkg-config gives flags that compile and link" {
  export PKG_CONFIG_PATH=$LIBDIR/pkgconfig
  pkg-config --validate tidepool
  cat >"$BATS_TEST_TMPDIR/user.cc" <<'EOF'
#include "runtime/options.h"
int main() { return tidepool::parseSize("2G").has_value() ? 0 : 1; }
EOF
  c++ -std=c++20 -fsyntax-only $(pkg-config --cflags tidepool) "$BATS_TEST_TMPDIR/user.cc"
  nm -C "$LIBDIR/libtidepool_runtime.a" 2>/dev/null | grep -q ' T tidepool::parseSize' || return 0
  c++ -std=c++20 $(pkg-config --cflags tidepool) "$BATS_TEST_TMPDIR/user.cc" \
    $(pkg-config --static --libs tidepool) -o "$BATS_TEST_TMPDIR/user"
  "$BATS_TEST_TMPDIR/user"
}

@test "the CMake package is found and its targets work" {
  mkdir "$BATS_TEST_TMPDIR/user"
  cat >"$BATS_TEST_TMPDIR/user/CMakeLists.txt" <<'EOF'
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
find_package(tidepool 0.1 REQUIRED CONFIG)
if(TARGET tidepool::runtime)
  add_executable(user user.cc)
  target_link_libraries(user PRIVATE tidepool::runtime)
endif()
EOF
  cat >"$BATS_TEST_TMPDIR/user/user.cc" <<'EOF'
#include "runtime/base/units.h"
int main() { return tidepool::kPageSize == 4096 ? 0 : 1; }
EOF
  cmake -S "$BATS_TEST_TMPDIR/user" -B "$BATS_TEST_TMPDIR/out" -DCMAKE_PREFIX_PATH="$PREFIX"
  cmake --build "$BATS_TEST_TMPDIR/out"
  [ ! -e "$BATS_TEST_TMPDIR/out/user" ] || "$BATS_TEST_TMPDIR/out/user"
}

@test "man pages and completion are where their readers look" {
  for page in "$SOURCE"/docs/man/*.1; do
    [ -e "$page" ] || continue
    [ -e "$PREFIX/share/man/man1/$(basename "$page")" ]
  done
  [ -e "$PREFIX/share/tidepool/udev/60-tidepool-userfaultfd.rules" ]
}

@test "units start what was installed, and have no gaps left" {
  for unit in manager memserver agent; do
    grep -q '^ExecStart=/opt/tidepool/bin/fabricmgr ' "$PREFIX/share/tidepool/systemd/tidepool-$unit.service"
    ! grep '@' "$PREFIX/share/tidepool/systemd/tidepool-$unit.service" | grep -v '^SystemCallFilter='
  done
}
