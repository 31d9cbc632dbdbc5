// SPDX-License-Identifier: Apache-2.0
// The connections of a memory server by number, so that a client which makes a broken one again can
// say which. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "runtime/base/mutex.h"

namespace tidepool::memserver {

class Session;

class Connections {
 public:
  /// One session's entry, which it shares. A session works only while it holds `turn`, and the one
  /// that replaces it waits for that. Sessions replace older ones alone, so there is no circle.
  struct Entry {
    Mutex turn;
    Session* session TP_GUARDED_BY(turn) = nullptr;  // null: it has ended
  };

  /// Gives the entry a number, which is not 0 and no other connection's. `region`: its region.
  uint32_t enter(std::shared_ptr<Entry> entry, uint64_t region) TP_EXCLUDES(mutex_);
  void leave(uint32_t number) TP_EXCLUDES(mutex_);
  /// Ends connection `number` of that region, if there still is one: when this returns nothing that
  /// was sent on it, or past it through its lane, takes effect any more. True: it was the one that
  /// had made the region.
  bool replace(uint32_t number, uint64_t region) TP_EXCLUDES(mutex_);

 private:
  struct Numbered {
    std::shared_ptr<Entry> entry;
    uint64_t region;
  };
  Mutex mutex_;
  std::unordered_map<uint32_t, Numbered> numbered_ TP_GUARDED_BY(mutex_);
  uint32_t last_ TP_GUARDED_BY(mutex_) = 0;
};

}  // namespace tidepool::memserver
