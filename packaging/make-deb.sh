#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make deb`: packs the release build, as `make install` would install it, into BUILD/deb/*.deb.
#   packaging/make-deb.sh [BUILD]     BUILD is a finished build folder; build/release if absent
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
build=$(realpath -m "${1:-$source/build/release}")
[[ -x $build/bin/fabricmgr ]] || { echo "make-deb: nothing is built in $build: run 'make' first" >&2; exit 1; }

version=$(sed -n 's/^project(tidepool VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")
# The same sources give the same package, whenever it is packed.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$source" log -1 --format=%ct 2>/dev/null ||
                                         stat -c %Y "$source/CHANGELOG.md")}
export SOURCE_DATE_EPOCH TIDEPOOL_BUILD=$build TIDEPOOL_SOURCE=$source

work=$build/deb
rm -rf "$work"
mkdir -p "$work/pack"
cp -r "$source/packaging/debian" "$work/pack/debian"
cat >"$work/pack/debian/changelog" <<END
tidepool ($version) unstable; urgency=medium

  * What is new is in CHANGELOG.md.

 -- Tidepool developers <tidepool@localhost.localdomain>  $(date -R -u -d "@$SOURCE_DATE_EPOCH")
END
cd "$work/pack"
debian/rules binary >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
rm -r "$work/pack"
ls "$work"/*.deb
