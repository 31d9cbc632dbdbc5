// SPDX-License-Identifier: Apache-2.0
// Making jemalloc arenas whose memory comes from somebody's hooks and whose tables do not: those
// would be cold pages taken under a lock. For the shim's heap and the API's. Thread-safe.
#pragma once

#include "allocator/arena/tpje.h"
#include "runtime/base/units.h"

namespace tidepool {

/// Makes one arena that grows by at most `grow_limit` ahead of need; 0 when jemalloc cannot.
/// `hooks` outlives it.
unsigned makeArena(TpjeExtentHooks* hooks, Bytes grow_limit);

/// For hooks: an extent may be cut anywhere, and neighbours may become one. False means yes.
bool allowSplit(TpjeExtentHooks*, void*, size_t, size_t, size_t, bool, unsigned);
bool allowMerge(TpjeExtentHooks*, void*, size_t, void*, size_t, bool, unsigned);

}  // namespace tidepool
