// SPDX-License-Identifier: Apache-2.0
// Preloaded into a program under test: kills it, as `kill -9` would, when it has written to the
// kernel's device files (/sys) for the KILL_AFTER_WRITES-th time. What libcxl writes before it
// reads, to wait until the kernel has found all devices, changes nothing and does not count.
// Thread-safe.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

bool isDeviceFile(int fd) {
  char path[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return readlink(link.c_str(), path, sizeof path - 1) > 0 && std::strncmp(path, "/sys/", 5) == 0 &&
         std::strcmp(path, "/sys/bus/cxl/flush") != 0;
}

}  // namespace

extern "C" ssize_t write(int fd, const void* bytes, size_t count) {
  static const auto real =
      reinterpret_cast<ssize_t (*)(int, const void*, size_t)>(dlsym(RTLD_NEXT, "write"));
  static const char* const text = std::getenv("KILL_AFTER_WRITES");
  static std::atomic<long> left{text == nullptr ? 0 : std::atol(text)};
  const ssize_t done = real(fd, bytes, count);
  if (text != nullptr && isDeviceFile(fd) && left.fetch_sub(1) == 1) kill(getpid(), SIGKILL);
  return done;
}
