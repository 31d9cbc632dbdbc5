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
  for name in libtidepool-preload.so libtidepool-seal.so libtidepool_runtime.a libtidepool.so libtidepool.so.0; do
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
  find . -name '*.h' -o -name '*.hpp' | sed 's|^\./||' | sort >"$BATS_TEST_TMPDIR/headers"
  while IFS=: read -r header needed; do
    [ -e "$needed" ] || [ -e "$(dirname "$header")/$needed" ] || { echo "$header includes $needed"; false; }
  done < <(xargs -a "$BATS_TEST_TMPDIR/headers" grep -HE '^ *# *include +"' | sed -E 's/^([^:]*):.*"(.*)".*/\1:\2/')
  # Both ways round, so that none leans on another that comes before.
  for order in "sort" "sort -r"; do
    sed 's/.*/#include "&"/' "$BATS_TEST_TMPDIR/headers" | $order >"$BATS_TEST_TMPDIR/all.cc"
    ${CXX:-c++} -std=c++20 -fsyntax-only -I . "$BATS_TEST_TMPDIR/all.cc"
  done
}

@test "the public header is C11 and C++20, alone, with every warning" {
  for header in tidepool.h tidepool.hpp tables.h tables.hpp; do echo "#include <tidepool/$header>" >"$BATS_TEST_TMPDIR/${header/./_}.src"; done
  strict="-fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Werror -I $PREFIX/include"
  ${CC:-cc} -x c -std=c11 -Wstrict-prototypes $strict "$BATS_TEST_TMPDIR/tidepool_h.src"
  ${CXX:-c++} -x c++ -std=c++20 $strict "$BATS_TEST_TMPDIR/tidepool_h.src"
  ${CXX:-c++} -x c++ -std=c++20 $strict "$BATS_TEST_TMPDIR/tidepool_hpp.src"
  ${CXX:-c++} -x c++ -std=c++20 -fno-exceptions -fno-rtti $strict "$BATS_TEST_TMPDIR/tidepool_hpp.src"
  ${CC:-cc} -x c -std=c11 -Wstrict-prototypes $strict "$BATS_TEST_TMPDIR/tables_h.src"
  ${CXX:-c++} -x c++ -std=c++20 -fno-exceptions -fno-rtti $strict "$BATS_TEST_TMPDIR/tables_hpp.src"
}

@test "the shared library exports its map under its version, and may be loaded by a running program" {
  [ -e "$LIBDIR/libtidepool.so.0" ]
  listed=$(awk '/^TIDEPOOL_/ {node = $1} /^    tidepool_/ {sub(";", ""); print $1 "@@" node}' "$SOURCE/allocator/tidepool.map" | sort)
  exported=$(nm -D --defined-only "$LIBDIR/libtidepool.so.0" | awk '$2 == "T" {print $3}' | sort)
  [ "$exported" = "$listed" ]
  # What a version has is settled with it: 27 functions in the first.
  [ "$(grep -c '@@TIDEPOOL_0.1$' <<<"$listed")" = 27 ]
  [ -z "$(nm -D --defined-only "$LIBDIR/libtidepool.so.0" | awk '$2 != "T" && $2 != "A"')" ]
  declared=$(grep -hoE '^TIDEPOOL_API [^(]*\btidepool_[a-z_]+\(' "$PREFIX"/include/tidepool/t*.h | grep -oE 'tidepool_[a-z_]+\(' | tr -d '(' | sort)
  [ "$declared" = "$(sed 's/@@.*//' <<<"$listed" | sort)" ]
  readelf -d "$LIBDIR/libtidepool.so.0" | grep -q 'SONAME.*libtidepool\.so\.0'
  ! readelf -d "$LIBDIR/libtidepool.so.0" | grep -q STATIC_TLS
  ! readelf -d "$LIBDIR/libtidepool.so.0" | grep NEEDED | grep -vE 'libc\.so|libstdc\+\+|libm\.so|libgcc_s|ld-linux'
  python3 -c "import ctypes; ctypes.CDLL('$LIBDIR/libtidepool.so.0').tidepool_version"
}

# PROGRAM: built with flags of pkg-config alone, run by itself and under `tidepool run`.
build_and_run() {
  export PKG_CONFIG_PATH=$LIBDIR/pkgconfig LD_LIBRARY_PATH=$LIBDIR
  unset TIDEPOOL_CONF
  "$@" -Wall -Wextra -Werror $(pkg-config --cflags tidepool) "$PROGRAM" $(pkg-config --libs tidepool) -o "$BATS_TEST_TMPDIR/program"
  "$BATS_TEST_TMPDIR/program" own
  "$PREFIX/bin/tidepool" run --dram 96M --far cxl:256M --conf strict:true -- "$BATS_TEST_TMPDIR/program" run
}

@test "a C program is built against the installed library, and shares the budget of a run" {
  PROGRAM=$SOURCE/tests/allocator/programs/heaps.c
  build_and_run ${CC:-cc} -std=c11 -Wpedantic
}

@test "a C program has embedding tables in its own far tiers, and in those of a run" {
  PROGRAM=$SOURCE/tests/allocator/programs/tables.c
  build_and_run ${CC:-cc} -std=c11 -Wpedantic
}

@test "the worked example scores the same alone and under a run, with exceptions and without" {
  export PKG_CONFIG_PATH=$LIBDIR/pkgconfig LD_LIBRARY_PATH=$LIBDIR
  example=$(pkg-config --variable=examples tidepool)/recommend.cc
  for flags in "-O1" "-O1 -fno-exceptions -fno-rtti"; do
    ${CXX:-c++} -std=c++20 -Wall -Wextra -Werror $flags "$example" $(pkg-config --cflags --libs tidepool) -o "$BATS_TEST_TMPDIR/recommend"
    "$BATS_TEST_TMPDIR/recommend" dram:64M,far:cxl:256M | tee "$BATS_TEST_TMPDIR/own"
    "$PREFIX/bin/tidepool" run --dram 64M --far cxl:256M --conf strict:true -- "$BATS_TEST_TMPDIR/recommend" >"$BATS_TEST_TMPDIR/run"
    [ "$(head -1 "$BATS_TEST_TMPDIR/own")" = "$(head -1 "$BATS_TEST_TMPDIR/run")" ]
  done
}

@test "a C++ program is built against the installed library, with exceptions and without" {
  PROGRAM=$SOURCE/tests/allocator/programs/containers.cc
  build_and_run ${CXX:-c++} -std=c++20
  build_and_run ${CXX:-c++} -std=c++20 -fno-exceptions -fno-rtti
}

@test "pkg-config gives flags that compile and link" {
  export PKG_CONFIG_PATH=$LIBDIR/pkgconfig
  pkg-config --validate tidepool tidepool-runtime
  cat >"$BATS_TEST_TMPDIR/user.cc" <<'EOF'
#include "runtime/options.h"
int main() { return tidepool::parseSize("2G").has_value() ? 0 : 1; }
EOF
  c++ -std=c++20 -fsyntax-only $(pkg-config --cflags tidepool-runtime) "$BATS_TEST_TMPDIR/user.cc"
  nm -C "$LIBDIR/libtidepool_runtime.a" 2>/dev/null | grep -q ' T tidepool::parseSize' || return 0
  c++ -std=c++20 $(pkg-config --cflags tidepool-runtime) "$BATS_TEST_TMPDIR/user.cc" \
    $(pkg-config --static --libs tidepool-runtime) -o "$BATS_TEST_TMPDIR/user"
  "$BATS_TEST_TMPDIR/user"
}

@test "the CMake package is found and its targets work" {
  mkdir "$BATS_TEST_TMPDIR/user"
  cat >"$BATS_TEST_TMPDIR/user/CMakeLists.txt" <<'EOF'
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C CXX)
find_package(tidepool 0.1 REQUIRED CONFIG)
if(TARGET tidepool::tidepool)
  add_executable(heaps heaps.c)
  target_link_libraries(heaps PRIVATE tidepool::tidepool)
endif()
if(TARGET tidepool::runtime)
  add_executable(user user.cc)
  target_link_libraries(user PRIVATE tidepool::runtime)
endif()
EOF
  cat >"$BATS_TEST_TMPDIR/user/user.cc" <<'EOF'
#include "runtime/base/units.h"
int main() { return tidepool::kPageSize == 4096 ? 0 : 1; }
EOF
  cp "$SOURCE/tests/allocator/programs/heaps.c" "$BATS_TEST_TMPDIR/user/"
  cmake -S "$BATS_TEST_TMPDIR/user" -B "$BATS_TEST_TMPDIR/out" -DCMAKE_PREFIX_PATH="$PREFIX"
  cmake --build "$BATS_TEST_TMPDIR/out"
  [ ! -e "$BATS_TEST_TMPDIR/out/user" ] || "$BATS_TEST_TMPDIR/out/user"
  "$BATS_TEST_TMPDIR/out/heaps" own
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
