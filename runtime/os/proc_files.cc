// SPDX-License-Identifier: Apache-2.0
// The kept descriptor of /proc, and getdents64(2).
#include "runtime/os/proc_files.h"

#include <atomic>

#include "runtime/base/format.h"
#include "runtime/base/own_fds.h"
#include "runtime/base/raw_calls.h"

namespace tidepool::os {
namespace {

constexpr int kNotOpened = -2;
constinit std::atomic<int> proc_folder{kNotOpened};

/// -1 where there is no /proc. An O_PATH descriptor needs no right but to look paths up.
int procFolder() {
  // Relaxed: a number, which the kernel gives its meaning.
  int folder = proc_folder.load(std::memory_order_relaxed);
  if (folder != kNotOpened) return folder;
  const int opened = keepFd(raw::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (proc_folder.compare_exchange_strong(folder, opened, std::memory_order_relaxed)) {
    return opened;
  }
  UniqueFd(opened).reset(-1);  // another thread was faster
  return folder;
}

}  // namespace

UniqueFd openProc(const char* path, int flags) {
  UniqueFd fd(raw::openat(procFolder(), path, flags | O_CLOEXEC));
  if (fd.valid()) return fd;
  // A program may have closed the descriptor past us.
  char whole[96];
  formatText(whole, sizeof whole, "/proc/%s", path);
  return UniqueFd(raw::open(whole, flags | O_CLOEXEC));
}

bool readProc(const char* path, char* text, size_t size) {
  const UniqueFd fd = openProc(path, O_RDONLY);
  const ssize_t got = fd.valid() ? raw::read(fd.get(), text, size - 1) : 0;
  text[got > 0 ? got : 0] = '\0';
  return got > 0;
}

struct FolderReader::Entry {  // linux_dirent64
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[];
};

const char* FolderReader::next() {
  if (at_ == filled_) {
    filled_ = raw::call(SYS_getdents64, folder_, buffer_, sizeof buffer_);
    at_ = 0;
    if (filled_ <= 0) {
      filled_ = 0;
      return nullptr;
    }
  }
  const auto* entry = reinterpret_cast<const Entry*>(buffer_ + at_);
  at_ += entry->length;
  return entry->name;
}

}  // namespace tidepool::os
