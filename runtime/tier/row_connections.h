// SPDX-License-Identifier: Apache-2.0
// The connections of one tier that its row channels share: a few, whatever the number of channels.
// A connection ends with its last channel. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/tier/row_connection.h"

namespace tidepool {

class RowConnections {
 public:
  /// Each of these is opened before any is shared: a server's threads, four at the most unless it
  /// is told otherwise, serve a connection each, and so many channels do not wait for each other.
  static constexpr size_t kMost = 8;

  /// One for another channel: a new one over the client that `make()` returns while there are
  /// fewer than kMost that work, then one with the fewest channels. Errors: those of `make()`,
  /// kNoMemory.
  template <typename Make>
  Result<std::shared_ptr<RowConnection>> share(Make make) TP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (auto shared = leastShared()) return shared;
    auto client = make();
    if (!client) return tl::unexpected(client.error());
    return add(std::move(*client));
  }

  /// Whether one that works has no lane.
  bool anyWithoutLane() TP_EXCLUDES(mutex_);

  /// In a child of fork(): all are the parent's, and a thread that was changing the list is
  /// not there.
  void forget() TP_LOCKS_INHERITED {
    new (&mutex_) Mutex;
    new (&places_) Places;  // not destroyed: nothing is freed here
  }

 private:
  using Places = std::array<std::weak_ptr<RowConnection>, kMost>;
  std::shared_ptr<RowConnection> leastShared() TP_REQUIRES(mutex_);
  Result<std::shared_ptr<RowConnection>> add(std::unique_ptr<RemoteClient> client)
      TP_REQUIRES(mutex_);

  Mutex mutex_;
  Places places_ TP_GUARDED_BY(mutex_);
};

}  // namespace tidepool
