// SPDX-License-Identifier: Apache-2.0
// RowBlockPool and RowBlockQueue: blocks are made when they are first needed.
#include "allocator/table/row_block.h"

#include <chrono>

#include "runtime/base/check.h"

namespace tidepool {

RowBlock* RowBlockPool::make() {
  auto memory = Mapping::anonymous(size_);
  if (!memory) return nullptr;
  auto block = std::make_unique<RowBlock>();
  block->bytes = memory->data();
  block->memory_ = std::move(*memory);
  block->pool = this;
  blocks_.push_back(std::move(block));
  return blocks_.back().get();
}

RowBlock* RowBlockPool::take() {
  MutexLock lock(mutex_);
  if (free_.empty() && blocks_.size() < most_ && !closed_) return make();
  if (free_.empty() && !closed_) {
    const auto start = std::chrono::steady_clock::now();
    waits_.fetch_add(1, std::memory_order_relaxed);
    while (free_.empty() && !closed_) returned_.wait(mutex_);
    const auto time = std::chrono::steady_clock::now() - start;
    waited_.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(time).count()),
                      std::memory_order_relaxed);
  }
  if (closed_) return nullptr;
  RowBlock* const block = free_.back();
  free_.pop_back();
  return block;
}

void RowBlockPool::giveBack(RowBlock* block) {
  MutexLock lock(mutex_);
  block->rows.clear();
  block->ids.clear();
  block->uses.clear();
  block->removed = false;
  free_.push_back(block);
  TP_CHECK(block->pool == this && free_.size() <= blocks_.size());  // or it came back twice
  returned_.notifyOne();
}

void RowBlockPool::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  returned_.notifyAll();
}

void RowBlockQueue::push(RowBlock* block) {
  MutexLock lock(mutex_);
  blocks_.push_back(block);
  pushed_.notifyOne();
}

RowBlock* RowBlockQueue::pop() {
  MutexLock lock(mutex_);
  while (blocks_.empty() && !closed_) pushed_.wait(mutex_);
  if (blocks_.empty()) return nullptr;
  RowBlock* const block = blocks_.front();
  blocks_.pop_front();
  return block;
}

void RowBlockQueue::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  pushed_.notifyAll();
}

}  // namespace tidepool
