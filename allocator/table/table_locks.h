// SPDX-License-Identifier: Apache-2.0
// The locks of all tables of one call, each taken once, in the order of their addresses, so that
// calls on several tables cannot wait for one another in a circle.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "allocator/table/table.h"

namespace tidepool {

class EmbeddingTable::Locks {
 public:
  /// kFirst: before those who wait, for who works beside the calls.
  enum class Turn : uint8_t { kLast, kFirst };
  /// `calls` (BagCall or UpdateCall) is borrowed.
  template <typename Call>
  explicit Locks(std::span<const Call> calls, Turn turn = Turn::kLast) TP_LOCKS_MANY {
    for (const Call& call : calls) order_.push_back(call.table);
    tables_ = order_;
    std::sort(tables_.begin(), tables_.end(), std::less<>());
    tables_.erase(std::unique(tables_.begin(), tables_.end()), tables_.end());
    for (EmbeddingTable* table : tables_) {
      if (turn == Turn::kFirst) {
        table->lockFirst();
      } else {
        table->letOthersIn();
        table->mutex_.lock();
      }
    }
  }
  ~Locks() TP_LOCKS_MANY {
    for (EmbeddingTable* table : tables_) {
      table->tellCounts();
      table->mutex_.unlock();
    }
  }
  Locks(const Locks&) = delete;
  Locks& operator=(const Locks&) = delete;

  std::span<EmbeddingTable* const> tables() const { return tables_; }
  /// True if a call after the i-th is on the same table.
  bool occursLater(size_t i) const {
    return std::find(order_.begin() + static_cast<ptrdiff_t>(i) + 1, order_.end(), order_[i]) !=
           order_.end();
  }

 private:
  std::vector<EmbeddingTable*> order_, tables_;
};

}  // namespace tidepool
