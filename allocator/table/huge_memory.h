// SPDX-License-Identifier: Apache-2.0
// Private memory that is looked at all over: zero-filled, on a granule's boundary, in huge pages
// where the kernel has some. What is smaller than a granule has ordinary pages. Sizes are bytes.
#pragma once

#include <cstddef>

#include "runtime/base/mapping.h"
#include "runtime/base/result.h"

namespace tidepool {

class HugeMemory {
 public:
  HugeMemory() = default;
  /// Costs nothing until it is touched, then granules where pages are huge. Errors: kNoMemory.
  static Result<HugeMemory> allocate(Bytes size);
  /// From now on no more than the first `size` bytes are used: what lies behind them goes back to
  /// the system, and is zeros should it be used again.
  void use(Bytes size);
  /// The whole pages of a part go back to the system: zeros, when they are used again.
  void giveBack(const std::byte* first, Bytes size);

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }

 private:
  Mapping mapping_;
  std::byte* data_ = nullptr;
  Bytes size_;
};

}  // namespace tidepool
