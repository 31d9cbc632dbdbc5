// SPDX-License-Identifier: Apache-2.0
// One tensor on its way to or from far memory. Its memory is borrowed until it is over. To
// know when, wait or have a DoneQueue told. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/tensors/done_queue.h"
#include "allocator/tensors/tensor_value.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"

namespace tidepool {

enum class TransferKind : uint8_t { kPut, kGet };

class TensorTransfer {
 public:
  /// `memory` has the value's size; of a put it is read only. `order`: the place of a put among
  /// those of the store.
  TensorTransfer(TransferKind kind, std::shared_ptr<TensorValue> value, std::byte* memory,
                 uint64_t order)
      : kind_(kind), order_(order), memory_(memory), value_(std::move(value)) {}

  TransferKind kind() const { return kind_; }
  uint64_t order() const { return order_; }
  bool over() const { return over_.load(std::memory_order_acquire); }
  /// How it ended. Only once it is over().
  Status outcome() TP_EXCLUDES(mutex_);

  enum class Waited : uint8_t { kOver, kTimedOut, kInterrupted };
  /// Blocks until it is over, so much time has passed (nothing: no limit), or a signal handler ran.
  /// Errors: kNoMemory.
  Result<Waited> wait(std::optional<Nanoseconds> timeout) TP_EXCLUDES(mutex_);
  /// Pushes the token when it is over; at once if it is.
  void tell(std::shared_ptr<DoneQueue> queue, uint64_t token) TP_EXCLUDES(mutex_);

  // For those who move bytes; until it is over.
  TensorValue& value() const { return *value_; }
  std::shared_ptr<TensorValue> share() const { return value_; }
  std::byte* memory(const TensorValue::Piece& piece) const { return memory_ + piece.offset; }
  /// Where the last page is put together, or taken apart, if it is not a whole one.
  std::byte* lastPage() { return last_page_.data(); }
  /// Lets go of the value, and tells everybody. Once.
  void end(const Status& outcome) TP_EXCLUDES(mutex_);

 private:
  friend class TransferQueue;
  const TransferKind kind_;
  const uint64_t order_;
  std::byte* const memory_;
  std::shared_ptr<TensorValue> value_;
  alignas(64) std::array<std::byte, kPageSize> last_page_;

  // Of the queue, under its lock.
  size_t next_piece_ = 0;
  size_t under_way_ = 0;
  std::optional<Error> failure_;

  std::atomic<bool> over_{false};
  Mutex mutex_;
  std::optional<Error> error_ TP_GUARDED_BY(mutex_);
  std::vector<std::pair<std::shared_ptr<DoneQueue>, uint64_t>> waiting_ TP_GUARDED_BY(mutex_);
};

}  // namespace tidepool
