// SPDX-License-Identifier: Apache-2.0
// Batches that were announced, in the order in which they are used: how many, which are finished,
// and what is known of those that rows are read ahead for. Under the table's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "allocator/policy/row_units.h"
#include "allocator/rows/row_numbers.h"
#include "allocator/table/announced_batch.h"
#include "runtime/base/check.h"

namespace tidepool {

/// They count up from 1.
using BatchNumber = uint64_t;

class AnnouncedBatches {
 public:
  /// Of those that are not finished: the policy tells batches apart that are at most so far ahead.
  static constexpr uint64_t kMost = NextUse::kMostAhead;

  /// 0 for none.
  BatchNumber newest() const { return newest_; }
  /// The newest that is; all before it are.
  BatchNumber finished() const { return finished_; }
  bool mayAnnounce() const { return newest_ - finished_ < kMost; }
  BatchNumber announce() {
    TP_CHECK(mayAnnounce());
    return ++newest_;
  }
  /// That batch and those before it. False if they were, or it was never announced.
  bool finish(BatchNumber batch) {
    if (batch <= finished_ || batch > newest_) return false;
    finished_ = batch;
    return true;
  }

  // Of tables that read rows ahead:
  /// The newest batch has these rows.
  void add(std::span<const RowNumber> rows) {
    std::vector<uint64_t> words;
    if (!spare_words_.empty()) {
      words = std::move(spare_words_.back());
      spare_words_.pop_back();
    }
    waiting_.emplace_back(newest_, rows, std::move(words));
  }
  /// Forgets those that are finished.
  void dropFinished() {
    for (; !waiting_.empty() && waiting_.front().number() <= finished_; waiting_.pop_front()) {
      if (spare_words_.size() < kSpares) spare_words_.push_back(waiting_.front().takeWords());
    }
  }
  /// Forgets those with a row of which holds(row) is true; they stay announced.
  template <typename Holds>
  void dropWith(Holds holds) {
    std::erase_if(waiting_, [&](const AnnouncedBatch& batch) { return batch.any(holds); });
  }
  void dropAll() { waiting_.clear(); }
  /// Rows have moved from where they were when batches were announced.
  void forgetPlaces() {
    for (AnnouncedBatch& batch : waiting_) batch.forgetPlaces();
  }
  /// Those that were added and not forgotten since, in order.
  std::deque<AnnouncedBatch>& waiting() { return waiting_; }
  /// The first of them that has these rows; null if none has.
  AnnouncedBatch* find(std::span<const RowNumber> rows) {
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [rows](const AnnouncedBatch& one) { return one.is(rows); });
    return found == waiting_.end() ? nullptr : &*found;
  }
  /// Whether of all of them it is known where their rows are.
  bool allKnown() const {
    return waiting_.empty() || waiting_.back().known() == waiting_.back().size();
  }

 private:
  // Memory of batches that are over, kept for others.
  static constexpr size_t kSpares = 2;

  BatchNumber newest_ = 0, finished_ = 0;
  std::deque<AnnouncedBatch> waiting_;
  std::vector<std::vector<uint64_t>> spare_words_;
};

}  // namespace tidepool
