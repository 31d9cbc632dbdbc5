// SPDX-License-Identifier: Apache-2.0
// Who waits for events. One thread reads each event once from the manager and hands it to those it
// concerns, so that thousands of watchers cost neither threads nor queries. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "fabricmgr/api/exchange.h"
#include "fabricmgr/manager/manager.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::api {

/// Once answers with the first events that come; a stream goes on.
enum class Watch : uint8_t { kOnce, kStream };

struct Watcher {
  std::shared_ptr<Exchange> exchange;
  Watch kind = Watch::kOnce;
  fabric::Index since;  // it has seen everything up to here
  fabric::HostId host;  // only what concerns this one; 0: everything
  Nanoseconds until;    // kOnce: answer with nothing then (monotonic)
};

/// {"items":[...],"next":0,"index":N}
std::string eventsJson(std::span<const fabric::Event> events, fabric::Index index,
                       const fabric::Names& names);
/// As server-sent events, one of them for each index, which is its id.
std::string eventsStream(std::span<const fabric::Event> events, const fabric::Names& names);

class WatchHub {
 public:
  explicit WatchHub(fabric::Manager& manager, const Clock& clock);
  /// As stop().
  ~WatchHub();
  WatchHub(const WatchHub&) = delete;
  WatchHub& operator=(const WatchHub&) = delete;

  /// Answers all who wait, and from now on everyone who comes, at once. May be called twice.
  void stop() TP_EXCLUDES(mutex_);
  /// From the manager's on_durable: never blocks.
  void wake();
  /// Takes a watcher in. False if there are events after `since` that the hub has handed out
  /// already: read them from the manager and try again.
  bool park(Watcher watcher) TP_EXCLUDES(mutex_);
  uint64_t watchers() const { return count_.load(std::memory_order_relaxed); }

 private:
  void run();
  /// Reads and hands out what is new.
  void handOut() TP_EXCLUDES(mutex_);
  /// Whether the watcher is done with. `news` may begin with what it has seen already: it read the
  /// store itself before it came here.
  bool handTo(Watcher* watcher, std::span<const fabric::Event> news, const fabric::Names& names)
      TP_REQUIRES(mutex_);
  bool sweepOne(Watcher* watcher, Nanoseconds now, bool ping) TP_REQUIRES(mutex_);
  void give(Watcher* watcher, std::span<const fabric::Event> events, fabric::Index index,
            const fabric::Names& names) TP_REQUIRES(mutex_);
  /// Drops who has gone, answers whose time is over, keeps streams awake.
  void sweep() TP_EXCLUDES(mutex_);

  fabric::Manager& manager_;
  const Clock& clock_;
  UniqueFd wake_;  // an eventfd
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> count_{0};
  Mutex mutex_;
  fabric::Index seen_ TP_GUARDED_BY(mutex_);
  std::vector<Watcher> watchers_ TP_GUARDED_BY(mutex_);
  Nanoseconds last_ping_ TP_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tidepool::api
