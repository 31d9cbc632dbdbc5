// SPDX-License-Identifier: Apache-2.0
// A short array of numbers. Relaxed throughout: a descriptor is kept before its number is shown to
// anybody, and what a program does with numbers it does not own has no order to keep.
#include "runtime/base/own_fds.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>

#include "runtime/base/raw_calls.h"

namespace tidepool {
namespace {

constexpr int kNone = -1;
// Above select(2)'s FD_SETSIZE, and low enough for the kernel's table of descriptors, which fork()
// copies, to stay small.
constexpr rlim_t kFirstOwn = 1024;
constexpr rlim_t kRoom = 288;
constexpr rlim_t kLeastRoom = 24;  // where even the hard limit is low
// A userfaultfd or two, doorbells, and for each of 15 tiers four connections, of four descriptors
// each where they have RDMA.
constexpr size_t kMost = 288;

constinit std::atomic<int> list[kMost] = {};  // number + 1; 0: free
constinit std::atomic<int> lowest{INT_MAX};   // none on the list was ever below
constinit std::atomic<int> base{0};

bool put(int from, int to) {
  for (auto& entry : list) {
    int expected = from + 1;
    if (entry.compare_exchange_strong(expected, to + 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

}  // namespace

void placeOwnFdsHigh() {
  rlimit limit;
  if (raw::prlimit(RLIMIT_NOFILE, nullptr, &limit) != 0) return;
  const rlim_t room = limit.rlim_max > 2 * kRoom ? kRoom : kLeastRoom;
  const rlim_t highest = limit.rlim_max - std::min(limit.rlim_max, room);
  base.store(static_cast<int>(std::min(kFirstOwn, highest)), std::memory_order_relaxed);
}

FdRoom::FdRoom() {
  const rlim_t wanted = static_cast<rlim_t>(base.load(std::memory_order_relaxed)) + kRoom;
  if (raw::prlimit(RLIMIT_NOFILE, nullptr, &before_) != 0) return;
  const rlim_t most = std::min(wanted, before_.rlim_max);
  if (most <= before_.rlim_cur) return;
  const rlimit raised{most, before_.rlim_max};
  if (raw::prlimit(RLIMIT_NOFILE, &raised, &before_) == 0) raised_ = raised;
}

FdRoom::~FdRoom() {
  if (raised_.rlim_cur == 0) return;
  rlimit found;
  if (raw::prlimit(RLIMIT_NOFILE, &before_, &found) != 0) return;
  // The program set a limit meanwhile: it is that one which holds.
  if (found.rlim_cur != raised_.rlim_cur || found.rlim_max != raised_.rlim_max) {
    raw::prlimit(RLIMIT_NOFILE, &found, nullptr);
  }
}

int keepFd(int fd) {
  const int first = base.load(std::memory_order_relaxed);
  if (fd < 0) return fd;
  if (fd < first) {
    FdRoom room;
    const int high = raw::fcntl(fd, F_DUPFD_CLOEXEC, first);
    if (high >= 0) {
      raw::close(fd);
      fd = high;
    }
  }
  if (!put(kNone, fd)) return fd;
  int seen = lowest.load(std::memory_order_relaxed);
  while (fd < seen && !lowest.compare_exchange_weak(seen, fd, std::memory_order_relaxed)) {
  }
  return fd;
}

bool isOwnFd(int fd) {
  if (fd < lowest.load(std::memory_order_relaxed)) return false;
  for (const auto& entry : list) {
    if (entry.load(std::memory_order_relaxed) == fd + 1) return fd >= 0;
  }
  return false;
}

void forgetOwnFd(int fd) {
  if (isOwnFd(fd)) put(fd, kNone);
}

int nextOwnFd(unsigned from) {
  int next = kNone;
  for (const auto& entry : list) {
    const int fd = entry.load(std::memory_order_relaxed) - 1;
    if (fd >= 0 && static_cast<unsigned>(fd) >= from && (next < 0 || fd < next)) next = fd;
  }
  return next;
}

}  // namespace tidepool
