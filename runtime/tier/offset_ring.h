// SPDX-License-Identifier: Apache-2.0
// Where the rows or pages of requests in flight lie, one list of offsets a request. A client sends
// a list from where it is, so it is contiguous and stays until its request has ended. Requests end
// in their order. One thread at a time; allocates when it is made.
#pragma once

#include <span>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/mapping.h"

namespace tidepool {

class OffsetRing {
 public:
  /// For at most `offsets` offsets in at most `lists` lists, a power of two. Errors: kNoMemory.
  static Result<OffsetRing> create(uint64_t offsets, uint64_t lists) {
    auto memory = Mapping::anonymous(
        Bytes(roundUp(offsets * sizeof(uint64_t) + lists * sizeof(List), kPageSize)));
    if (!memory) return tl::unexpected(memory.error());
    return OffsetRing(std::move(*memory), offsets, lists);
  }

  /// `count` places in a row, to be filled and kept; none while others have the room. Requests
  /// before number `oldest` have ended.
  std::span<uint64_t> place(uint64_t count, uint64_t oldest) {
    for (; first_ != last_ && list(first_).request < oldest; ++first_) begin_ = list(first_).end;
    if (first_ == last_) begin_ = end_ = 0;  // the same memory again: it is in the cache
    if (last_ - first_ == lists_) return {};
    const bool wrapped = end_ < begin_;
    uint64_t at = end_;
    if (!wrapped && offsets_ - at < count) at = 0;
    // Never up to begin_ itself: a full ring would look like an empty one.
    if ((wrapped || at < end_) && at + count >= begin_) return {};
    return {offsets() + at, count};
  }
  /// What place() gave is the list of request number `request`.
  void keep(std::span<const uint64_t> placed, uint64_t request) {
    TP_CHECK_OP(last_ - first_, <, lists_);
    end_ = static_cast<uint64_t>(placed.data() + placed.size() - offsets());
    list(last_++) = {request, end_};
  }
  /// The number of its first place, for what lies in another array beside the offsets.
  uint64_t indexOf(std::span<const uint64_t> placed) const {
    return static_cast<uint64_t>(placed.data() - offsets());
  }

 private:
  struct List {
    uint64_t request;
    uint64_t end;
  };
  OffsetRing(Mapping memory, uint64_t offsets, uint64_t lists)
      : memory_(std::move(memory)), offsets_(offsets), lists_(lists) {}
  uint64_t* offsets() const { return reinterpret_cast<uint64_t*>(memory_.data()); }
  List& list(uint64_t index) const {
    return reinterpret_cast<List*>(offsets() + offsets_)[index & (lists_ - 1)];
  }

  Mapping memory_;
  uint64_t offsets_;
  uint64_t lists_;
  // Offsets in flight lie in [begin_, end_), or in [begin_, some end) and [0, end_).
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  uint64_t first_ = 0;
  uint64_t last_ = 0;
};

}  // namespace tidepool
