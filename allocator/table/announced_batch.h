// SPDX-License-Identifier: Apache-2.0
// What a table knows of an announced batch: where the row of each look-up is, found out when it was
// announced, so that using the batch needs no search. Eight bytes a look-up. Under the table's
// lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "allocator/rows/row_numbers.h"
#include "runtime/base/debug_check.h"

namespace tidepool {

class AnnouncedBatch {
 public:
  /// `words` is memory of a batch that is over, or empty.
  AnnouncedBatch(uint64_t number, std::span<const RowNumber> rows, std::vector<uint64_t> words)
      : number_(number), words_(std::move(words)) {
    words_.assign(rows.begin(), rows.end());
  }
  std::vector<uint64_t> takeWords() { return std::move(words_); }

  uint64_t number() const { return number_; }
  size_t size() const { return words_.size(); }

  /// Of the first look-ups it is known where their rows are; of the others the rows alone.
  size_t known() const { return known_; }
  std::span<const RowNumber> unknown(size_t most) const {
    return std::span(words_).subspan(known_, std::min(most, words_.size() - known_));
  }
  /// The next rows are in these places, once so many requests are answered. What places mean is
  /// the table's affair; kNoSlot: the row is not where it will be, and has to be looked for then.
  void know(std::span<const Slot> places, uint64_t requests) {
    TP_CHECK_OP(places.size(), <=, words_.size() - known_);
    for (size_t i = 0; i < places.size(); ++i) {
      words_[known_ + i] = words_[known_ + i] << kSlotBits | places[i];
      if (places[i] == kNoSlot) moving_.push_back(known_ + i);
    }
    known_ += places.size();
    requests_.push_back({known_, requests});
  }
  /// Rows have moved.
  void forgetPlaces() {
    for (size_t i = 0; i < known_; ++i) words_[i] >>= kSlotBits;
    known_ = 0;
    requests_.clear();
    moving_.clear();
  }

  /// Whether these are its rows.
  bool is(std::span<const RowNumber> rows) const {
    if (rows.size() != words_.size()) return false;
    for (size_t from = 0; from < rows.size(); from += kCompared) {
      const size_t end = std::min(from + kCompared, rows.size());
      const size_t known_end = std::clamp(known_, from, end);
      uint64_t differ = 0;  // the loops have no exit, and are vectorised
      for (size_t i = from; i < known_end; ++i) differ |= (words_[i] >> kSlotBits) ^ rows[i];
      for (size_t i = known_end; i < end; ++i) differ |= words_[i] ^ rows[i];
      if (differ != 0) return false;
    }
    return true;
  }
  /// Whether holds(row) is true of any of its rows.
  template <typename Holds>
  bool any(Holds holds) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      if (holds(i < known_ ? words_[i] >> kSlotBits : words_[i])) return true;
    }
    return false;
  }
  Slot place(size_t lookup) const {
    TP_DCHECK_OP(lookup, <, known_);
    return static_cast<Slot>(words_[lookup] & kNoSlot);
  }
  /// Look-ups from `first` to `end` that have no place, ascending.
  std::span<const size_t> moving(size_t first, size_t end) const {
    const auto from = std::lower_bound(moving_.begin(), moving_.end(), first);
    return {from, std::lower_bound(from, moving_.end(), end)};
  }
  /// Requests after which the rows of the first `end` look-ups, all of them known, are there.
  uint64_t requestsFor(size_t end) const {
    const auto reaches = [](const Requests& piece, size_t lookups) { return piece.end < lookups; };
    const auto at = std::lower_bound(requests_.begin(), requests_.end(), end, reaches);
    return at == requests_.end() ? 0 : at->requests;
  }

  /// It was looked up: rows that were not asked for by then need not be any more.
  bool used = false;

 private:
  static constexpr size_t kCompared = 1024;
  struct Requests {
    size_t end;
    uint64_t requests;
  };

  uint64_t number_;
  std::vector<uint64_t> words_;  // row << kSlotBits | place where known, else the row
  size_t known_ = 0;
  std::vector<Requests> requests_;
  std::vector<size_t> moving_;
};

}  // namespace tidepool
