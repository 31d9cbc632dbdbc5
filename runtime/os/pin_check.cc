// SPDX-License-Identifier: Apache-2.0
// Asks the kernel about each descriptor in turn, with plain system calls: opendir(3) would
// allocate, and fstat(2) may ask a file server, which may be this very process. Numbers can be
// opened by calls that nobody sees, and nothing tells of that, so each look asks about all of them.
// Those at the low end are asked about one by one, as quick as that is; the directory lists what
// lies behind.
#include "runtime/os/pin_check.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "runtime/base/format.h"
#include "runtime/base/mutex.h"
#include "runtime/base/own_fds.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/proc_files.h"

namespace tidepool::os {
namespace {

struct Entry {  // linux_dirent64
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[];
};
constexpr int64_t kBeforeNumbers = 2;  // "." and ".." come first in the directory

enum class Found : uint8_t { kNothing, kHarmless, kMayPin };

constexpr Found mayPin(bool may) { return may ? Found::kMayPin : Found::kHarmless; }

/// Of the kernel's character devices those that hand out no memory and take none.
bool isHarmlessDevice(uint32_t major, uint32_t minor) {
  constexpr uint32_t kMemory = 1, kVirtualTerminals = 4, kTerminals = 5, kFirstPts = 136,
                     kLastPts = 143;
  constexpr uint32_t kHarmlessMemory[] = {3, 5, 7, 8, 9, 11};  // null zero full random urandom kmsg
  if (major == kMemory) {
    return std::find(std::begin(kHarmlessMemory), std::end(kHarmlessMemory), minor) !=
           std::end(kHarmlessMemory);
  }
  return major == kVirtualTerminals || major == kTerminals ||
         (major >= kFirstPts && major <= kLastPts);
}

bool isNumbered(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) && name.size() > prefix.size() &&
         name.find_first_not_of("0123456789", prefix.size()) == std::string_view::npos;
}

/// Of what has a name only: files without a type, and devices whose number is not fixed.
bool isHarmlessName(std::string_view name) {
  constexpr std::string_view kHarmless[] = {
      "anon_inode:[eventfd]",     "anon_inode:[eventpoll]",    "anon_inode:[timerfd]",
      "anon_inode:[signalfd]",    "anon_inode:inotify",        "anon_inode:[fanotify]",
      "anon_inode:[userfaultfd]", "anon_inode:[pidfd]",        "anon_inode:[perf_event]",
      "anon_inode:bpf-map",       "anon_inode:bpf-prog",       "anon_inode:bpf_link",
      "anon_inode:btf",           "anon_inode:seccomp notify", "anon_inode:[landlock-ruleset]",
      "/dev/userfaultfd"};
  return std::find(std::begin(kHarmless), std::end(kHarmless), name) != std::end(kHarmless) ||
         isNumbered(name, "/dev/nvidia-caps/nvidia-cap");  // stand for a right, and do nothing
}

enum class Followed : uint8_t { kNotYet, kAll, kNotAll };
std::atomic<Followed> nvidia{Followed::kNotYet};

/// GPUs, and what drives them; not the devices of GPUDirect Storage or of debuggers.
bool isNvidiaName(std::string_view name) {
  return name == "/dev/nvidiactl" || name == "/dev/nvidia-uvm" || isNumbered(name, "/dev/nvidia");
}

bool isFollowed(std::string_view name) {
  return nvidia.load(std::memory_order_relaxed) == Followed::kAll && isNvidiaName(name);
}

/// Families whose sockets may keep pages to send from at most: those only read them.
bool isHarmlessFamily(int family) {
  constexpr int kHarmless[] = {AF_UNIX,   AF_INET, AF_INET6,     AF_NETLINK,
                               AF_PACKET, AF_CAN,  AF_BLUETOOTH, AF_VSOCK};
  return std::find(std::begin(kHarmless), std::end(kHarmless), family) != std::end(kHarmless);
}

long readName(int directory, int fd, std::span<char> name) {
  char number[16];
  formatText(number, sizeof number, "%d", fd);
  return raw::readlinkat(directory, number, name.data(), name.size());
}

Found lookAtName(int directory, int fd) {
  char target[64];
  const long length = readName(directory, fd, target);
  if (length < 0) return errno == ENOENT ? Found::kNothing : Found::kMayPin;
  const std::string_view name(target, static_cast<size_t>(length));
  return mayPin(!isHarmlessName(name) && !isFollowed(name));
}

Found lookAtFlags(int fd) {
  const long flags = raw::call(SYS_fcntl, fd, F_GETFL);
  if (flags < 0) return Found::kNothing;  // closed meanwhile
  return mayPin((flags & O_DIRECT) != 0);
}

/// Nothing if it is no socket.
std::optional<Found> lookAtSocket(int fd) {
  int family = 0;
  socklen_t size = sizeof family;
  if (raw::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0) {
    return mayPin(!isHarmlessFamily(family));
  }
  if (errno == ENOTSOCK) return std::nullopt;
  return errno == EBADF ? Found::kNothing : Found::kMayPin;
}

/// Our own RDMA connections reach memory of their own alone. A program that uses the same device
/// has a descriptor besides, if only librdmacm's for events. `sockets`: asked first whether it is
/// one, as the descriptor before it was, which is half the cost if so, and little if not.
Found lookAt(int directory, int fd, bool& sockets) {
  if (isOwnFd(fd)) return Found::kHarmless;
  if (sockets) {
    if (const std::optional<Found> found = lookAtSocket(fd)) return *found;
    sockets = false;
  }
  struct statx about;
  if (raw::call(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &about) != 0) {
    return errno == EBADF ? Found::kNothing : Found::kMayPin;
  }
  switch (about.stx_mode & S_IFMT) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFBLK:
      return lookAtFlags(fd);
    case S_IFIFO:
    case S_IFLNK:
      return Found::kHarmless;
    case S_IFSOCK:
      sockets = true;
      return lookAtSocket(fd).value_or(Found::kMayPin);
    case S_IFCHR:
      if (isHarmlessDevice(about.stx_rdev_major, about.stx_rdev_minor)) return Found::kHarmless;
      return lookAtName(directory, fd);
    default:
      return lookAtName(directory, fd);
  }
}

/// The process's table of descriptors, and what was found there last. Begins anew in a forked
/// child.
class Descriptors {
 public:
  bool mayPin() {
    if (owner_ != raw::getpid()) begin();
    if (directory_ < 0) return true;
    if (stillMayPin()) return true;
    pinning_ = kNone;
    open_ = 0;
    const int dense = std::exchange(dense_, 0);
    for (int fd = 0; fd < dense; ++fd) {
      if (!note(fd)) return true;
    }
    return !noteFrom(dense);
  }
  bool stillMayPin() const {
    bool sockets = false;
    return owner_ == raw::getpid() && pinning_ >= 0 &&
           lookAt(directory_, pinning_, sockets) == Found::kMayPin;
  }
  void describe(std::span<char> out) const {
    char name[64];
    const long length = stillMayPin() ? readName(directory_, pinning_, name) : -1;
    if (length < 0) {
      formatText(out.data(), out.size(), "a descriptor");
    } else {
      formatText(out.data(), out.size(), "descriptor %d (%.*s)", pinning_, static_cast<int>(length),
                 name);
    }
  }

 private:
  static constexpr int kNone = -1;

  /// Kept open: one that is opened for each look would take the number that the program's next
  /// descriptor is to have.
  void begin() {
    if (directory_ >= 0) {
      forgetOwnFd(directory_);
      raw::close(directory_);
    }
    directory_ = keepFd(openProc("self/fd", O_RDONLY | O_DIRECTORY).release());
    owner_ = raw::getpid();
  }
  /// False: it may pin pages.
  bool note(int fd) {
    const Found found = lookAt(directory_, fd, sockets_);
    if (found == Found::kNothing) return true;
    // While at least half of all numbers are in use, it is quicker to try them than to list them.
    if (++open_ >= fd / 2) dense_ = fd + 1;
    if (found == Found::kHarmless) return true;
    pinning_ = fd;
    return false;
  }
  /// The same for all that are in use from `first` on; false as well if the kernel does not say.
  bool noteFrom(int first) {
    if (raw::call(SYS_lseek, directory_, first + kBeforeNumbers, SEEK_SET) < 0) return false;
    alignas(Entry) char buffer[4096];
    for (;;) {
      const long got = raw::call(SYS_getdents64, directory_, buffer, sizeof buffer);
      if (got <= 0) return got == 0;
      for (long at = 0; at < got;) {
        const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
        if (entry->name[0] != '.' && !note(atoi(entry->name))) return false;
        at += entry->length;
      }
    }
  }

  int directory_ = kNone;
  pid_t owner_ = 0;
  int pinning_ = kNone;   // what the last look ended with
  int dense_ = 0;         // numbers below it are tried one by one
  int open_ = 0;          // of those seen so far
  bool sockets_ = false;  // the last one was a socket
};

constinit Mutex descriptors_mutex;
constinit Descriptors descriptors TP_GUARDED_BY(descriptors_mutex);

}  // namespace

bool mayPinPages() {
  MutexLock lock(descriptors_mutex);
  return descriptors.mayPin();
}

bool mayStillPin() {
  MutexLock lock(descriptors_mutex);
  return descriptors.stillMayPin();
}

void followNvidia(bool all) {
  Followed before = Followed::kNotYet;
  if (!all) nvidia.store(Followed::kNotAll, std::memory_order_relaxed);
  if (all) nvidia.compare_exchange_strong(before, Followed::kAll, std::memory_order_relaxed);
}

void describePinning(std::span<char> out) {
  MutexLock lock(descriptors_mutex);
  descriptors.describe(out);
}

}  // namespace tidepool::os
