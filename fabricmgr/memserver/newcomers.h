// SPDX-License-Identifier: Apache-2.0
// Those who have connected and not shown yet what lets them in: they have places of their own, by
// address, so that strangers take no room from anybody else. Thread-safe.
#pragma once

#include <list>
#include <map>
#include <string>

#include "runtime/base/mutex.h"

namespace tidepool::memserver {

class Newcomers {
 public:
  enum class Place : uint8_t { kFree, kOfAnother };

  /// At most `most` at a time, of whom `most_of_one` may be of one network (see networkOf()).
  Newcomers(size_t most, size_t most_of_one) : most_(most), most_of_one_(most_of_one) {}

  /// One more, who always gets a place. If there is none left, the longest waiting among
  /// those of its network, or else of the network that has most, loses theirs: that socket is shut
  /// down, so that its owner's next look finds its end. Sockets are borrowed until leave().
  Place enter(int socket, const std::string& from) TP_EXCLUDES(mutex_);
  /// It has been let in, or is about to be closed. Does nothing if it has lost its place.
  void leave(int socket) TP_EXCLUDES(mutex_);

 private:
  struct Waiting {
    int socket;
    std::string network;
  };

  void evict(const std::string& from) TP_REQUIRES(mutex_);
  void forget(std::list<Waiting>::iterator one) TP_REQUIRES(mutex_);

  const size_t most_;
  const size_t most_of_one_;
  Mutex mutex_;
  std::list<Waiting> waiting_ TP_GUARDED_BY(mutex_);  // in the order in which they came
  std::map<std::string, size_t> of_network_ TP_GUARDED_BY(mutex_);
};

}  // namespace tidepool::memserver
