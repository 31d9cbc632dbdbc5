// SPDX-License-Identifier: Apache-2.0
// Group commit: one thread takes all batches that wait, has them written as one transaction, and
// tells those who wait for them. After a failure all that waited fails, and nothing more is taken
// until reset(). Thread-safe; the writer's functions are called by the queue's thread alone.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "fabricmgr/store/batch.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"

namespace tidepool::fabric {

class CommitQueue {
 public:
  /// Writes all or nothing, durably.
  using Write = std::function<Status(std::span<const Batch>)>;

  explicit CommitQueue(Write write);
  /// Writes what still waits.
  ~CommitQueue();
  CommitQueue(const CommitQueue&) = delete;
  CommitQueue& operator=(const CommitQueue&) = delete;

  void listen(std::function<void(Index)> on_durable) TP_EXCLUDES(mutex_);
  void append(Batch batch) TP_EXCLUDES(mutex_);
  Status await(Index index) TP_EXCLUDES(mutex_);
  Index durable() TP_EXCLUDES(mutex_);
  /// Waits until nothing is being written; then everything up to `index` counts as durable, what
  /// was appended beyond it is lost for good, and batches are taken again.
  void reset(Index index) TP_EXCLUDES(mutex_);

 private:
  /// Why a batch that was appended never became durable; null if it did, or may still.
  const Error* lossOf(Index index) const TP_REQUIRES(mutex_);
  void main() TP_EXCLUDES(mutex_);
  /// The batches to write next; empty: the queue is being closed.
  std::vector<Batch> next() TP_EXCLUDES(mutex_);
  void finish(Index last, const Status& written) TP_EXCLUDES(mutex_);

  const Write write_;
  Mutex mutex_;
  CondVar work_;
  CondVar done_;
  std::function<void(Index)> on_durable_ TP_GUARDED_BY(mutex_);
  std::vector<Batch> waiting_ TP_GUARDED_BY(mutex_);
  Index appended_ TP_GUARDED_BY(mutex_);
  Index durable_ TP_GUARDED_BY(mutex_);
  std::optional<Error> failure_ TP_GUARDED_BY(mutex_);
  struct Lost {
    Index after;
    Index last;
    Error why;
  };
  std::vector<Lost> lost_ TP_GUARDED_BY(mutex_);  // one for each failure
  bool writing_ TP_GUARDED_BY(mutex_) = false;
  bool closing_ TP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tidepool::fabric
