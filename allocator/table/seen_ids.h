// SPDX-License-Identifier: Apache-2.0
// How often ids that have no row were seen of late, so that an id gets a row only when it was seen
// so many times: most ids of a long-tailed stream come once or twice, and would fill a table.
//
// Counts are exact, for as many ids as there is memory for. There are two generations of them; when
// the younger is full the older is forgotten, and an id that is seen moves to the younger with its
// count. So an id is remembered at least until as many other ids were seen as a generation has room
// for, and no id is ever taken for another: none is admitted too early, and one that comes seldom
// may be forgotten, as it is meant to be (windows of a stream instead of a sketch of all of it, as
// in lossy counting: Manku, Motwani, "Approximate frequency counts over data streams", VLDB 2002).
// Not thread-safe (the table's lock).
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocator/table/id_map.h"
#include "runtime/base/mapping.h"
#include "runtime/base/result.h"

namespace tidepool {

class SeenIds {
 public:
  static constexpr uint32_t kMostTimes = 255;

  SeenIds() = default;
  /// Ids are admitted when they are seen for the `after`-th time, up to kMostTimes. A generation
  /// has room for so many ids, below 2^32. Errors: kNoMemory.
  static Result<SeenIds> create(uint32_t after, size_t remembered);
  /// Less than 31 bytes an id of a generation. Memory is taken as it is touched.
  static Bytes memoryFor(size_t remembered);

  Bytes memory() const { return young_.size() + old_.size(); }

  /// The id was seen. Whether it was often enough, which it then is until it is forgotten.
  bool see(uint64_t id);
  /// As if it had never been seen.
  void forget(uint64_t id);
  void clear();

 private:
  struct Generation {
    IdMap ids;
    Mapping memory;
    uint8_t* times() const { return reinterpret_cast<uint8_t*>(memory.data()); }
    Bytes size() const { return ids.memory() + Bytes(ids.end()); }
    /// How often; 0 if it is not here. It is not here any more.
    uint8_t take(uint64_t id);
  };

  uint8_t after_ = 1;
  Generation young_, old_;
};

}  // namespace tidepool
