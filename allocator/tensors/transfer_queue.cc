// SPDX-License-Identifier: Apache-2.0
// TransferQueue: a ring of transfers that have pieces left.
#include "allocator/tensors/transfer_queue.h"

#include <sys/eventfd.h>

#include <algorithm>

#include "runtime/base/check.h"

namespace tidepool {

void TransferQueue::push(std::shared_ptr<TensorTransfer> transfer) {
  if (transfer->value().pieces() == 0) {
    ended_(*transfer, Status());
    return;
  }
  MutexLock lock(mutex_);
  waiting_.push_back(std::move(transfer));
  pushed_.notifyAll();  // it may be of many pieces
  if (wake_fd_ >= 0) eventfd_write(wake_fd_, 1);
}

std::optional<TransferQueue::Claim> TransferQueue::takeFirst() {
  if (waiting_.empty()) return std::nullopt;
  std::shared_ptr<TensorTransfer> transfer = std::move(waiting_.front());
  waiting_.pop_front();
  TP_CHECK_OP(transfer->next_piece_, <, transfer->value().pieces());
  Claim claim{transfer, transfer->next_piece_++};
  ++transfer->under_way_;
  if (transfer->next_piece_ < transfer->value().pieces()) waiting_.push_back(std::move(transfer));
  return claim;
}

std::optional<TransferQueue::Claim> TransferQueue::take() {
  MutexLock lock(mutex_);
  while (waiting_.empty() && !stopped_) pushed_.wait(mutex_);
  return takeFirst();
}

std::optional<TransferQueue::Claim> TransferQueue::tryTake() {
  MutexLock lock(mutex_);
  return takeFirst();
}

void TransferQueue::finish(const Claim& claim, const Status& status) {
  const std::shared_ptr<TensorTransfer>& transfer = claim.transfer;
  Status outcome;
  {
    MutexLock lock(mutex_);
    TP_CHECK_OP(transfer->under_way_, >, 0u);
    --transfer->under_way_;
    if (!status && !transfer->failure_) {
      transfer->failure_ = status.error();
      std::erase(waiting_, transfer);
    }
    const bool more = transfer->next_piece_ < transfer->value().pieces() && !transfer->failure_;
    if (more || transfer->under_way_ > 0) return;
    if (transfer->failure_) outcome = tl::unexpected(*transfer->failure_);
  }
  ended_(*transfer, outcome);
}

void TransferQueue::failAll(const Error& error) {
  std::deque<std::shared_ptr<TensorTransfer>> ended;
  {
    MutexLock lock(mutex_);
    for (const auto& transfer : waiting_) {
      transfer->failure_ = error;
      if (transfer->under_way_ == 0) ended.push_back(transfer);
    }
    waiting_.clear();
  }
  for (const auto& transfer : ended) ended_(*transfer, tl::unexpected(error));
}

void TransferQueue::stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  pushed_.notifyAll();
  if (wake_fd_ >= 0) eventfd_write(wake_fd_, 1);
}

bool TransferQueue::stopped() {
  MutexLock lock(mutex_);
  return stopped_;
}

}  // namespace tidepool
