// SPDX-License-Identifier: Apache-2.0
// CommitQueue: one mutex, one thread.
#include "fabricmgr/store/commit_queue.h"

#include <algorithm>

#include "fabricmgr/model/fault_point.h"
#include "runtime/base/check.h"

namespace tidepool::fabric {

CommitQueue::CommitQueue(Write write) : write_(std::move(write)), thread_([this] { main(); }) {}

CommitQueue::~CommitQueue() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  work_.notifyAll();
  thread_.join();
}

void CommitQueue::listen(std::function<void(Index)> on_durable) {
  MutexLock lock(mutex_);
  on_durable_ = std::move(on_durable);
}

void CommitQueue::append(Batch batch) {
  {
    MutexLock lock(mutex_);
    TP_CHECK_OP(batch.index.value(), >, appended_.value());
    appended_ = batch.index;
    if (failure_) return;  // await() will say so
    waiting_.push_back(std::move(batch));
  }
  work_.notifyOne();
}

const Error* CommitQueue::lossOf(Index index) const {
  for (const Lost& lost : lost_) {
    if (index > lost.after && index <= lost.last) return &lost.why;
  }
  return nullptr;
}

Status CommitQueue::await(Index index) {
  MutexLock lock(mutex_);
  while (durable_ < index && !failure_ && lossOf(index) == nullptr) done_.wait(mutex_);
  if (const Error* why = lossOf(index)) return tl::unexpected(*why);
  if (durable_ >= index) return {};
  return tl::unexpected(*failure_);
}

Index CommitQueue::durable() {
  MutexLock lock(mutex_);
  return durable_;
}

void CommitQueue::reset(Index index) {
  MutexLock lock(mutex_);
  while (writing_ || (!failure_ && !waiting_.empty())) done_.wait(mutex_);
  waiting_.clear();
  if (failure_ && appended_ > index) lost_.push_back({index, appended_, *failure_});
  failure_.reset();
  TP_CHECK_OP(index.value(), >=, durable_.value());  // what is durable stays so
  durable_ = index;
  appended_ = std::max(appended_, index);
  done_.notifyAll();
}

std::vector<Batch> CommitQueue::next() {
  MutexLock lock(mutex_);
  while (waiting_.empty() && !closing_) work_.wait(mutex_);
  TP_CHECK(!writing_ && !(failure_ && !waiting_.empty()));
  std::vector<Batch> taken;
  taken.swap(waiting_);
  writing_ = !taken.empty();
  return taken;
}

void CommitQueue::finish(Index last, const Status& written) {
  std::function<void(Index)> tell;
  {
    MutexLock lock(mutex_);
    TP_CHECK(writing_);
    TP_CHECK_OP(last.value(), >, durable_.value());
    TP_CHECK_OP(last.value(), <=, appended_.value());
    writing_ = false;
    if (written) {
      durable_ = last;
      tell = on_durable_;
    } else {
      failure_ = written.error();
      waiting_.clear();
    }
  }
  done_.notifyAll();
  if (tell) tell(last);
}

void CommitQueue::main() {
  for (;;) {
    const std::vector<Batch> batches = next();
    if (batches.empty()) return;
    faultPoint(FaultPoint::kBeforeCommit);
    const Status written = write_(batches);
    faultPoint(FaultPoint::kAfterCommit);
    finish(batches.back().index, written);
  }
}

}  // namespace tidepool::fabric
