// SPDX-License-Identifier: Apache-2.0
// residency --pid PID --layout FILE --every-ms N: where gups's hot and cold pages are, looked up
// from outside in /proc/PID/pagemap, one JSON line a look, until gups's measured time is over or it
// has ended. A page is *local* when present and anonymous, *direct* when present and a file's or
// shared (a mapped memory pool: used in place, at the pool's latency), *away* when absent (in
// remote memory, in swap, or for a moment in Tidepool's hands). Reading 1 GiB's entries takes some
// milliseconds; the cost is in the output.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kPageShift = 12;
constexpr uint64_t kPresent = 1ull << 63;  // Documentation/admin-guide/mm/pagemap.rst
constexpr uint64_t kFileOrShared = 1ull << 61;

struct Layout {
  uint64_t base = 0, pages = 0, hot = 0, start_ns = 0, change_ns = 0, end_ns = 0;
  std::vector<uint8_t> is_hot[2];  // by page
};

uint64_t nowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(t.tv_nsec);
}

bool readLayout(const char* path, Layout& layout) {
  std::ifstream file(path);
  std::string line, word;
  int sets = 0;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    words >> word;
    if (word == "base") words >> layout.base;
    if (word == "pages") words >> layout.pages;
    if (word == "hot") words >> layout.hot;
    if (word == "start") words >> layout.start_ns;
    if (word == "change") words >> layout.change_ns;
    if (word == "end") words >> layout.end_ns;
    if (word != "set" || sets == 2) continue;
    layout.is_hot[sets].assign(layout.pages, 0);
    for (uint64_t page; words >> page;) {
      if (page < layout.pages) layout.is_hot[sets][page] = 1;
    }
    sets++;
  }
  return sets == 2 && layout.pages > 0 && layout.hot > 0;
}

/// One look at every page; false when the process is gone.
bool look(int pagemap, const Layout& layout, std::vector<uint64_t>& entries) {
  const uint64_t began = nowNs();
  const size_t bytes = layout.pages * sizeof(uint64_t);
  const off_t offset = static_cast<off_t>((layout.base >> kPageShift) * sizeof(uint64_t));
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = pread(pagemap, reinterpret_cast<char*>(entries.data()) + done, bytes - done,
                              offset + static_cast<off_t>(done));
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  const int phase = began < layout.change_ns ? 0 : 1;
  uint64_t local[2] = {0, 0}, direct[2] = {0, 0};  // [0] cold pages, [1] hot pages
  for (uint64_t page = 0; page < layout.pages; page++) {
    const uint64_t entry = entries[page];
    const uint8_t hot = layout.is_hot[phase][page];
    if ((entry & kPresent) == 0) continue;
    ((entry & kFileOrShared) != 0 ? direct : local)[hot]++;
  }
  printf(
      "{\"seconds\": %.3f, \"phase\": %d, \"hot_local\": %llu, \"hot_direct\": %llu, "
      "\"cold_local\": %llu,"
      " \"cold_direct\": %llu, \"look_seconds\": %.4f}\n",
      static_cast<double>(began - layout.start_ns) * 1e-9, phase,
      static_cast<unsigned long long>(local[1]), static_cast<unsigned long long>(direct[1]),
      static_cast<unsigned long long>(local[0]), static_cast<unsigned long long>(direct[0]),
      static_cast<double>(nowNs() - began) * 1e-9);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const char *pid = nullptr, *path = nullptr;
  long every_ms = 250;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--pid") pid = argv[i + 1];
    if (word == "--layout") path = argv[i + 1];
    if (word == "--every-ms") every_ms = atol(argv[i + 1]);
  }
  if (pid == nullptr || path == nullptr || every_ms <= 0) {
    fprintf(stderr, "usage: residency --pid PID --layout FILE [--every-ms N]\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  Layout layout;
  if (!readLayout(path, layout)) {
    fprintf(stderr, "residency: %s is not a layout file\n", path);
    return 1;
  }
  const std::string name = std::string("/proc/") + pid + "/pagemap";
  const int pagemap = open(name.c_str(), O_RDONLY | O_CLOEXEC);
  if (pagemap < 0) {
    fprintf(stderr, "residency: %s: %s\n", name.c_str(), strerror(errno));
    return 1;
  }
  std::vector<uint64_t> entries(layout.pages);
  const timespec pause{every_ms / 1000, (every_ms % 1000) * 1'000'000};
  while (nowNs() < layout.end_ns && look(pagemap, layout, entries)) nanosleep(&pause, nullptr);
  close(pagemap);
  return 0;
}
