// SPDX-License-Identifier: Apache-2.0
// The statistics of a context's memory as JSON, in memory of its own.
#pragma once

#include <string_view>

#include "allocator/context.h"
#include "runtime/base/mapping.h"

namespace tidepool {

class StatsText {
 public:
  /// Of now. Errors: kNoMemory; kUnsupported if the statistics of the run are of another version.
  static Result<StatsText> of(Context& context);
  std::string_view view() const { return {reinterpret_cast<char*>(memory_.data()), size_}; }

 private:
  StatsText(Mapping memory, size_t size) : memory_(std::move(memory)), size_(size) {}
  Mapping memory_;
  size_t size_;
};

}  // namespace tidepool
