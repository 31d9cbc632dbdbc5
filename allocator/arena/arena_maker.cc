// SPDX-License-Identifier: Apache-2.0
// The control calls that make an arena. Thread-safe; jemalloc keeps the tables.
#include "allocator/arena/arena_maker.h"

#include <cstdio>

#include "runtime/base/format.h"

namespace tidepool {
namespace {

// What "experimental.arenas_create_ext" takes.
struct ArenaConfig {
  TpjeExtentHooks* hooks;
  bool metadata_use_hooks;
};

}  // namespace

unsigned makeArena(TpjeExtentHooks* hooks, Bytes grow_limit) {
  unsigned id = 0;
  size_t id_size = sizeof id;
  ArenaConfig config{hooks, false};
  if (tpje_mallctl("experimental.arenas_create_ext", &id, &id_size, &config, sizeof config) != 0) {
    if (tpje_mallctl("arenas.create", &id, &id_size, &hooks, sizeof hooks) != 0) return 0;
  }
  char name[48];
  formatText(name, sizeof name, "arena.%u.retain_grow_limit", id);
  size_t limit = grow_limit.value();
  // Only a tuning: an arena without the limit works as well.
  static_cast<void>(tpje_mallctl(name, nullptr, nullptr, &limit, sizeof limit));
  return id;
}

bool allowSplit(TpjeExtentHooks*, void*, size_t, size_t, size_t, bool, unsigned) { return false; }
bool allowMerge(TpjeExtentHooks*, void*, size_t, void*, size_t, bool, unsigned) { return false; }

}  // namespace tidepool
