#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/layering.sh must catch what it says it catches: each case is a small tree with one include.
set -euo pipefail
check=$(cd "$(dirname "$0")/.." && pwd)/layering.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

expect() {  # pass|fail FILE INCLUDE
  rm -rf "${tree:?}"/*
  mkdir -p "$tree/$(dirname "$2")"
  echo "#include $3" >"$tree/$2"
  local got=pass
  "$check" "$tree" >/dev/null || got=fail
  if [[ $got != "$1" ]]; then
    echo "layering of $2 with $3: wanted $1, got $got"
    failures=$((failures + 1))
  fi
}

expect pass runtime/space/a.cc '"runtime/os/b.h"'
expect pass runtime/migrate/a.cc '"runtime/tier/tier.h"'
expect pass runtime/tier/a.cc '"runtime/options.h"'
expect pass shim/a.cc '"allocator/tidepool.h"'
expect pass shim/cli/a.cc '<CLI/CLI.hpp>'
expect pass fabricmgr/memserver/a.cc '"runtime/transport/wire.h"'
expect pass fabricmgr/memserver/a.cc '<spdlog/spdlog.h>'
expect pass fabricmgr/manager/a.cc '"fabricmgr/store/store.h"'
expect fail fabricmgr/model/a.h '"fabricmgr/store/store.h"'
expect fail fabricmgr/store/a.cc '"fabricmgr/placement/placement.h"'
expect fail fabricmgr/device/a.cc '"fabricmgr/manager/manager.h"'
expect pass fabricmgr/api/a.cc '"fabricmgr/manager/manager.h"'
expect fail fabricmgr/manager/a.cc '"fabricmgr/api/service.h"'
expect fail fabricmgr/cli/a.cc '"fabricmgr/manager/manager.h"'
expect fail fabricmgr/cli/a.cc '"fabricmgr/api/routes.h"'
expect fail runtime/base/a.h '"runtime/os/b.h"'
expect fail runtime/base/a.h '"runtime/options.h"'
expect fail runtime/os/a.cc '"runtime/space/b.h"'
expect fail runtime/policy/a.cc '"runtime/os/b.h"'
expect fail runtime/sample/a.cc '"runtime/migrate/b.h"'
expect pass runtime/migrate/fault/a.cc '"runtime/migrate/direct/b.h"'
expect fail runtime/migrate/fault/a.cc '"runtime/migrate/evict/b.h"'
expect fail runtime/migrate/core/a.cc '"runtime/migrate/direct/b.h"'
expect fail runtime/migrate/evict/a.cc '"runtime/migrate/migrator.h"'
expect fail runtime/policy/a.cc '"runtime/migrate/core/b.h"'
expect fail runtime/migrate/a.cc '  "shim/b.h"'
expect fail runtime/migrate/a.cc '<nlohmann/json.hpp>'
expect fail shim/a.cc '<spdlog/spdlog.h>'
expect fail shim/a.cc '<fmt/core.h>'
expect fail fabricmgr/model/a.cc '"runtime/tier/tier.h"'
expect fail fabricmgr/model/a.cc '"allocator/tidepool.h"'
expect fail allocator/a.cc '"shim/b.h"'
expect fail allocator/a.cc '"allocator/heap/b.h"'
expect fail allocator/arena/a.cc '"allocator/a.h"'
expect pass allocator/heap/a.cc '"allocator/context.h"'
expect pass allocator/capi/a.cc '"allocator/moves/hints.h"'
expect fail allocator/heap/a.cc '"allocator/capi/objects.h"'
expect fail allocator/include/tidepool/a.h '"runtime/base/units.h"'
expect pass shim/a.cc '"allocator/arena/tpje.h"'
expect fail shim/a.cc '"allocator/heap/heap.h"'
expect fail runtime/unheard/a.cc '<vector>'

rm -rf "${tree:?}"/*
if "$check" "$tree" >/dev/null; then
  echo "an empty tree passed"
  failures=$((failures + 1))
fi
[[ $failures -eq 0 ]] && echo "layering self test: all cases as wanted"
exit $((failures > 0))
