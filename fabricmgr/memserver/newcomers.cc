// SPDX-License-Identifier: Apache-2.0
// Newcomers: who comes last gets a place, since who floods the server comes most often.
#include "fabricmgr/memserver/newcomers.h"

#include <sys/socket.h>

#include <algorithm>

namespace tidepool::memserver {

Newcomers::Place Newcomers::enter(int socket, const std::string& from) {
  MutexLock lock(mutex_);
  Place place = Place::kOfAnother;
  const auto known = of_network_.find(from);
  if (known != of_network_.end() && known->second >= most_of_one_) {
    evict(from);
  } else if (waiting_.size() >= most_) {
    const auto fewer = [](const auto& left, const auto& right) {
      return left.second < right.second;
    };
    evict(std::string(std::max_element(of_network_.begin(), of_network_.end(), fewer)->first));
  } else {
    place = Place::kFree;
  }
  waiting_.push_back({socket, from});
  ++of_network_[from];
  return place;
}

void Newcomers::evict(const std::string& from) {
  const auto oldest = std::find_if(waiting_.begin(), waiting_.end(),
                                   [&](const Waiting& one) { return one.network == from; });
  (void)shutdown(oldest->socket, SHUT_RDWR);
  forget(oldest);
}

void Newcomers::forget(std::list<Waiting>::iterator one) {
  const auto count = of_network_.find(one->network);
  if (--count->second == 0) of_network_.erase(count);
  waiting_.erase(one);
}

void Newcomers::leave(int socket) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const Waiting& one) { return one.socket == socket; });
  if (found != waiting_.end()) forget(found);
}

}  // namespace tidepool::memserver
