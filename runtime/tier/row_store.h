// SPDX-License-Identifier: Apache-2.0
// A far tier as those use it who keep rows there rather than pages: adjacent frames for all rows of
// a table, which are read in place or through channels. The frames are the tier's own, so its
// other users share its memory with the tables. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/tier/row_channel.h"

namespace tidepool {

class DirectTier;
enum class TierKind : uint8_t;  // tier.h

class RowStore {
 public:
  virtual ~RowStore() = default;

  virtual TierKind kind() const = 0;
  /// Adjacent frames for `size` bytes, or none at all. Of a direct tier they are zeros at first.
  /// Errors: kNoSpace, also when there is enough, but not in one piece.
  virtual Result<FrameRun> allocate(Bytes size) = 0;
  virtual void release(FrameRun run) = 0;
  /// Of a direct tier: DirectTier::preferHuge().
  virtual void preferHuge(FrameRun) {}
  /// Where frames of a direct tier are; null of a fetch tier.
  virtual std::byte* memory(FrameRun run) const = 0;
  /// A channel of its own for the rows of `area`, in a fetch tier. Errors: as
  /// RemoteTier::openRows().
  virtual Result<std::unique_ptr<RowChannel>> openRows(const RowArea& area) = 0;
};

/// Over a tier that is read in place, which outlives it.
std::unique_ptr<RowStore> rowStoreInPlace(DirectTier& tier);

}  // namespace tidepool
