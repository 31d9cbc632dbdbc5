// SPDX-License-Identifier: Apache-2.0
// TensorTransfer: its end, and waiting for it.
#include "allocator/tensors/transfer.h"

#include <poll.h>

#include <cerrno>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"

namespace tidepool {

Status TensorTransfer::outcome() {
  TP_CHECK(over());
  MutexLock lock(mutex_);
  return error_ ? tl::unexpected(*error_) : Status();
}

void TensorTransfer::end(const Status& outcome) {
  value_.reset();
  MutexLock lock(mutex_);
  if (!outcome) error_ = outcome.error();
  // Release: a thread that sees it set sees what was read. Pairs with over().
  over_.store(true, std::memory_order_release);
  for (auto& [queue, token] : waiting_) queue->push(token);
  waiting_.clear();
}

void TensorTransfer::tell(std::shared_ptr<DoneQueue> queue, uint64_t token) {
  MutexLock lock(mutex_);
  if (over()) {
    queue->push(token);
  } else {
    waiting_.emplace_back(std::move(queue), token);
  }
}

Result<TensorTransfer::Waited> TensorTransfer::wait(std::optional<Nanoseconds> timeout) {
  if (over()) return Waited::kOver;
  auto queue = DoneQueue::create();
  if (!queue) return tl::unexpected(queue.error());
  tell(*queue, 0);
  MonotonicClock clock;
  const Nanoseconds start = clock.now();
  for (;;) {
    timespec left{};
    if (timeout) {
      const Nanoseconds passed = clock.now() - start;
      const uint64_t rest = passed >= *timeout ? 0 : (*timeout - passed).value();
      left = {static_cast<time_t>(rest / 1'000'000'000), static_cast<long>(rest % 1'000'000'000)};
    }
    pollfd readable{(*queue)->fd(), POLLIN, 0};
    const int ready = ppoll(&readable, 1, timeout ? &left : nullptr, nullptr);
    if (over()) return Waited::kOver;
    if (ready == 0) return Waited::kTimedOut;
    if (ready < 0 && errno == EINTR) return Waited::kInterrupted;
  }
}

}  // namespace tidepool
