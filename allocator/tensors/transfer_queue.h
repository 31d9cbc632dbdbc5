// SPDX-License-Identifier: Apache-2.0
// Transfers under way, handed out piece by piece in turn, so that a small tensor does not wait for
// a large one. The taker of a piece says how it ended; the transfer is over with its last piece,
// or after a failure with the last one that was taken. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "allocator/tensors/transfer.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace tidepool {

class TransferQueue {
 public:
  /// Called once for each transfer, when nobody uses its memory any more; it calls end().
  using Ended = std::function<void(TensorTransfer&, const Status&)>;
  explicit TransferQueue(Ended ended) : ended_(std::move(ended)) {}

  struct Claim {
    std::shared_ptr<TensorTransfer> transfer;
    size_t piece = 0;

    const TensorValue::Piece& place() const { return transfer->value().piece(piece); }
  };

  /// Pushing also makes `fd` (an eventfd that outlives the queue's use) readable.
  void wakeBy(int fd) { wake_fd_ = fd; }
  void push(std::shared_ptr<TensorTransfer> transfer) TP_EXCLUDES(mutex_);
  /// A piece; waits for one. Nothing once the queue is stopped and empty.
  std::optional<Claim> take() TP_EXCLUDES(mutex_);
  /// A piece if there is one now.
  std::optional<Claim> tryTake() TP_EXCLUDES(mutex_);
  /// The piece is over, well or not.
  void finish(const Claim& claim, const Status& status) TP_EXCLUDES(mutex_);
  /// Every transfer that no piece is taken of ends with the error.
  void failAll(const Error& error) TP_EXCLUDES(mutex_);

  /// No more pushes come; those who take end when everything is done.
  void stop() TP_EXCLUDES(mutex_);
  bool stopped() TP_EXCLUDES(mutex_);

 private:
  std::optional<Claim> takeFirst() TP_REQUIRES(mutex_);

  const Ended ended_;
  int wake_fd_ = -1;
  Mutex mutex_;
  CondVar pushed_;
  std::deque<std::shared_ptr<TensorTransfer>> waiting_ TP_GUARDED_BY(mutex_);  // with pieces left
  bool stopped_ TP_GUARDED_BY(mutex_) = false;
};

}  // namespace tidepool
