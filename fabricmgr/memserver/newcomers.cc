// SPDX-License-Identifier: Apache-2.0
// Newcomers: who comes last gets a place, since who floods the server comes most often.
#include "fabricmgr/memserver/newcomers.h"

#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace tidepool::memserver {

Origin originOf(const sockaddr_storage& address) {
  Origin origin = {};
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    origin[10] = origin[11] = 0xff;  // as IPv6 writes it
    memcpy(&origin[12], &four.sin_addr, sizeof four.sin_addr);
  } else if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    memcpy(origin.data(), &six.sin6_addr, IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) ? 16 : 8);
  }
  return origin;
}

std::string textOf(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, port,
                  sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown peer";
  }
  return std::string(host) + ":" + port;
}

Newcomers::Place Newcomers::enter(int socket, const Origin& from) {
  MutexLock lock(mutex_);
  Place place = Place::kOfAnother;
  const auto known = of_origin_.find(from);
  if (known != of_origin_.end() && known->second >= most_of_one_) {
    evict(from);
  } else if (waiting_.size() >= most_) {
    const auto fewer = [](const auto& left, const auto& right) {
      return left.second < right.second;
    };
    evict(Origin(std::max_element(of_origin_.begin(), of_origin_.end(), fewer)->first));
  } else {
    place = Place::kFree;
  }
  waiting_.push_back({socket, from});
  ++of_origin_[from];
  return place;
}

void Newcomers::evict(const Origin& from) {
  const auto oldest = std::find_if(waiting_.begin(), waiting_.end(),
                                   [&](const Waiting& one) { return one.origin == from; });
  (void)shutdown(oldest->socket, SHUT_RDWR);
  forget(oldest);
}

void Newcomers::forget(std::list<Waiting>::iterator one) {
  const auto count = of_origin_.find(one->origin);
  if (--count->second == 0) of_origin_.erase(count);
  waiting_.erase(one);
}

void Newcomers::leave(int socket) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const Waiting& one) { return one.socket == socket; });
  if (found != waiting_.end()) forget(found);
}

}  // namespace tidepool::memserver
