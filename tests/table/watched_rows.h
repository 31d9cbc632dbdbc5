// SPDX-License-Identifier: Apache-2.0
// A store that counts which rows tables read and write there.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "runtime/tier/row_store.h"

namespace tidepool {

/// Requests for rows of one table. Thread-safe.
class Requests {
 public:
  void read(std::span<const uint64_t> rows) {
    const std::lock_guard lock(mutex_);
    read_ += rows.size();
    // Nothing is there of a row that nobody has written.
    strangers_ += static_cast<size_t>(std::count_if(
        rows.begin(), rows.end(), [&](uint64_t row) { return !ever_.contains(row); }));
  }
  void written(std::span<const uint64_t> rows) {
    const std::lock_guard lock(mutex_);
    written_ += rows.size();
    ever_.insert(rows.begin(), rows.end());
    ++writes_under_way_;
  }
  void writeIsOver() {
    const std::lock_guard lock(mutex_);
    --writes_under_way_;
  }
  size_t rowsRead() const { return get(read_); }
  size_t rowsWritten() const { return get(written_); }
  /// Requests whose end the table has not heard of.
  size_t writesUnderWay() const { return get(writes_under_way_); }
  /// Rows that were read without ever having been written.
  size_t strangers() const { return get(strangers_); }

 private:
  size_t get(const size_t& count) const {
    const std::lock_guard lock(mutex_);
    return count;
  }
  mutable std::mutex mutex_;
  size_t read_ = 0, written_ = 0, strangers_ = 0, writes_under_way_ = 0;
  std::set<uint64_t> ever_;
};

class WatchedChannel final : public RowChannel {
 public:
  WatchedChannel(std::unique_ptr<RowChannel> inner, Requests& requests)
      : inner_(std::move(inner)), requests_(requests) {}
  size_t mostRows() const override { return inner_->mostRows(); }
  const RowArea& area() const override { return inner_->area(); }
  Status submitRead(uint64_t tag, std::span<const uint64_t> rows, std::byte* to) override {
    requests_.read(rows);
    return inner_->submitRead(tag, rows, to);
  }
  Status submitWrite(uint64_t tag, std::span<const uint64_t> rows, const std::byte* from) override {
    requests_.written(rows);
    Status submitted = inner_->submitWrite(tag, rows, from);
    if (submitted) {
      writes_.insert(tag);
    } else {
      requests_.writeIsOver();
    }
    return submitted;
  }
  Status flush() override { return inner_->flush(); }
  size_t poll(std::span<FetchCompletion> out) override {
    const size_t count = inner_->poll(out);
    for (size_t i = 0; i < count; ++i) isOver(out[i].tag);
    return count;
  }
  FetchCompletion wait() override {
    const FetchCompletion completion = inner_->wait();
    isOver(completion.tag);
    return completion;
  }
  size_t inFlight() const override { return inner_->inFlight(); }
  bool failed() const override { return inner_->failed(); }
  const char* reason() const override { return inner_->reason(); }

 private:
  void isOver(uint64_t tag) {
    if (writes_.erase(tag) > 0) requests_.writeIsOver();
  }

  std::unique_ptr<RowChannel> inner_;
  Requests& requests_;
  std::set<uint64_t> writes_;  // under way
};

class WatchedStore final : public RowStore {
 public:
  WatchedStore(std::unique_ptr<RowStore> inner, Requests& requests)
      : inner_(std::move(inner)), requests_(requests) {}
  TierKind kind() const override { return inner_->kind(); }
  Result<FrameRun> allocate(Bytes size) override { return inner_->allocate(size); }
  void release(FrameRun run) override { inner_->release(run); }
  std::byte* memory(FrameRun run) const override { return inner_->memory(run); }
  Result<std::unique_ptr<RowChannel>> openRows(const RowArea& area) override {
    auto channel = inner_->openRows(area);
    if (!channel) return channel;
    return std::make_unique<WatchedChannel>(std::move(*channel), requests_);
  }

 private:
  std::unique_ptr<RowStore> inner_;
  Requests& requests_;
};

}  // namespace tidepool
