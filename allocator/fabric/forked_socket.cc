// SPDX-License-Identifier: Apache-2.0
// ForkedSocket: a few places for descriptors that the fork handler looks at.
#include "allocator/fabric/forked_socket.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace tidepool {
namespace {

constexpr int kFree = -2, kNone = -1;
// As many pools as can matter: one is enough for a process. Those beyond have no place.
constexpr size_t kPlaces = 64;

std::array<std::atomic<int>, kPlaces>& places() {
  static auto& all = *new std::array<std::atomic<int>, kPlaces>;
  static const bool once = [] {
    for (std::atomic<int>& place : all) place.store(kFree, std::memory_order_relaxed);
    // In the child there is one thread, and no order to keep.
    pthread_atfork(nullptr, nullptr, [] {
      for (std::atomic<int>& place : places()) {
        const int fd = place.load(std::memory_order_relaxed);
        if (fd < 0) continue;
        place.store(kNone, std::memory_order_relaxed);
        close(fd);
      }
    });
    return true;
  }();
  (void)once;
  return all;
}

}  // namespace

ForkedSocket::ForkedSocket() : place_(kPlaces) {
  auto& all = places();
  for (size_t i = 0; i < kPlaces && place_ == kPlaces; ++i) {
    int free = kFree;
    if (all[i].compare_exchange_strong(free, kNone, std::memory_order_relaxed)) place_ = i;
  }
}

ForkedSocket::~ForkedSocket() { set(kFree); }

void ForkedSocket::set(int fd) {
  if (place_ < kPlaces) places()[place_].store(fd, std::memory_order_relaxed);
}

}  // namespace tidepool
