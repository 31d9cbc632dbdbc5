// SPDX-License-Identifier: Apache-2.0
// The known next batches of a table: for every lookup in them, which step uses the same row next.
// Lookups are announced and then used in the same order. Pure; not thread-safe; borrows its memory,
// about six bytes a lookup that can be known. Now and then a use is overlooked (a full bucket, two
// rows alike): a worse choice, no error.
#pragma once

#include <cstdint>
#include <span>

#include "allocator/policy/row_units.h"

namespace tidepool {

class RowFuture {
 public:
  static Bytes memoryFor(uint64_t most_lookups);

  /// `memory` is zero-filled, memoryFor(most_lookups) bytes, and outlives the object.
  RowFuture(uint64_t most_lookups, uint64_t seed, std::span<std::byte> memory);

  /// The next lookup after those announced so far, in a step not before theirs. Returns true if no
  /// earlier lookup of the row is pending: RowPolicy::willUse() is then to be told of this step if
  /// the row is resident. There must be room().
  bool announce(RowIndex row, Step step);
  bool room() const { return announced_ - used_ < most_; }

  /// The oldest lookup that is not used yet is carried out now: when its row is used next.
  NextUse use();
  uint64_t pending() const { return announced_ - used_; }

 private:
  static constexpr unsigned kWays = 10;
  struct alignas(64) Bucket {
    uint32_t position[kWays];  // one more than the number of the row's last announced lookup
    uint16_t tag[kWays];
  };

  bool live(uint32_t position) const;

  uint64_t most_, seed_;
  uint64_t announced_ = 0, used_ = 0;
  std::span<Bucket> buckets_;
  std::span<uint8_t> next_;  // of lookup number n at n % most_
};

}  // namespace tidepool
