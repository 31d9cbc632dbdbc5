// SPDX-License-Identifier: Apache-2.0
// What programs in the machines do with a DAX device's bytes: `device_bytes fill PATH OFFSET SIZE`
// writes a line in every page; `zero PATH OFFSET SIZE` fails unless every page's line is zero;
// `hold PATH` keeps it open until it is killed. One line a page: emulated CXL memory is slow.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kWords = 8;  // a line

int say(const char* what) {
  std::perror(what);
  return 2;
}

uint64_t* mapped(int fd, uint64_t offset, uint64_t size) {
  void* at =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  return at == MAP_FAILED ? nullptr : static_cast<uint64_t*>(at);
}

void fill(uint64_t* words, uint64_t size) {
  for (uint64_t at = 0; at < size / sizeof *words; at += kPage / sizeof *words) {
    for (uint64_t i = 0; i < kWords; ++i) words[at + i] = 0x7469646570'6f6f6cull ^ (at + i);
  }
}

uint64_t countOther(const uint64_t* words, uint64_t size) {
  uint64_t other = 0;
  for (uint64_t at = 0; at < size / sizeof *words; at += kPage / sizeof *words) {
    for (uint64_t i = 0; i < kWords; ++i) other += words[at + i] != 0;
  }
  return other;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string verb = argv[1];
  const int fd = open(argv[2], O_RDWR | O_CLOEXEC);
  if (fd < 0) return say(argv[2]);
  if (verb == "hold") {
    std::puts("held");
    std::fflush(stdout);
    for (;;) pause();
  }
  if (argc != 5) return 2;
  const uint64_t size = std::strtoull(argv[4], nullptr, 0);
  uint64_t* words = mapped(fd, std::strtoull(argv[3], nullptr, 0), size);
  if (words == nullptr) return say("mmap");
  if (verb == "fill") fill(words, size);
  const uint64_t other = countOther(words, size);
  std::printf("%s: %llu words are not zero\n", argv[2], static_cast<unsigned long long>(other));
  return verb == "zero" && other != 0 ? 1 : 0;
}
