// SPDX-License-Identifier: Apache-2.0
// Opens lanes past the server's process for sessions, each by a thread of its own: pinning a large
// region takes minutes, in which neither its session's worker nor anybody else waits. Thread-safe.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <future>
#include <list>
#include <memory>
#include <thread>

#include "fabricmgr/memserver/one_sided.h"
#include "runtime/base/mutex.h"

namespace tidepool::memserver {

/// A lane that is being made. Its calls are its session's.
class LaneOpening {
 public:
  explicit LaneOpening(OneSided& one_sided) : one_sided_(one_sided), offer_(made_.get_future()) {}
  /// Whether take() does not wait; waits `patience` for that.
  bool isMade(std::chrono::milliseconds patience) const {
    return offer_.wait_for(patience) == std::future_status::ready;
  }
  /// The lane, or why there is none. Once, and then nothing else.
  Result<wire::LaneOffer> take() { return offer_.get(); }
  /// Nobody waits for it any more: it is closed when it has been made. Does not wait.
  void abandon();

 private:
  friend class LaneOpener;
  void make(const std::shared_ptr<Region>& region, Epoch epoch, const sockaddr_storage& at);

  OneSided& one_sided_;
  std::promise<Result<wire::LaneOffer>> made_;
  std::future<Result<wire::LaneOffer>> offer_;
  std::atomic<bool> met_{false};    // one of make() and abandon() has come to its end
  std::atomic<bool> ended_{false};  // make() uses nothing any more
};

class LaneOpener {
 public:
  /// `one_sided` is borrowed.
  explicit LaneOpener(OneSided& one_sided) : one_sided_(one_sided) {}
  /// Waits for what is being made.
  ~LaneOpener();
  LaneOpener(const LaneOpener&) = delete;
  LaneOpener& operator=(const LaneOpener&) = delete;

  /// Begins to open a lane for a client that has come by `socket`. Errors: kIo, kNoMemory where no
  /// thread can be made.
  Result<std::shared_ptr<LaneOpening>> open(const std::shared_ptr<Region>& region, Epoch epoch,
                                            int socket) TP_EXCLUDES(mutex_);
  void close(const wire::Token& ticket) { one_sided_.close(ticket); }

 private:
  struct Maker {
    std::shared_ptr<LaneOpening> opening;
    std::thread thread;
  };

  OneSided& one_sided_;
  Mutex mutex_;
  std::list<Maker> makers_ TP_GUARDED_BY(mutex_);
};

}  // namespace tidepool::memserver
