// SPDX-License-Identifier: Apache-2.0
// fault_latency: fills a big allocation, then times single reads, one to a page, at random and then
// in order. Knows nothing of Tidepool; run under it, most pages have gone to far memory by the time
// they are read. Before each read the page's entry in /proc/self/pagemap tells what the read will
// meet: *away* (absent: a fault), *in_place* (a mapped pool: a load) or *local*. Prints one JSON
// object; times in microseconds. Every read is checked against what was written; a wrong byte ends
// the program with status 3.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPresent = 1ull << 63;
constexpr uint64_t kFileOrShared = 1ull << 61;
enum Class { kAway, kInPlace, kLocal, kClasses };
constexpr const char* kClassNames[kClasses] = {"away", "in_place", "local"};

uint64_t nowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(t.tv_nsec);
}

uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

Class classOf(int pagemap, const char* address) {
  uint64_t entry = 0;
  const off_t at = static_cast<off_t>(reinterpret_cast<uintptr_t>(address) / kPage * sizeof entry);
  if (pread(pagemap, &entry, sizeof entry, at) != static_cast<ssize_t>(sizeof entry)) {
    perror("fault_latency: /proc/self/pagemap");
    exit(1);
  }
  if ((entry & kPresent) == 0) return kAway;
  return (entry & kFileOrShared) != 0 ? kInPlace : kLocal;
}

/// Nearest-rank quantile, in microseconds.
double quantile(std::vector<uint32_t>& sorted, double q) {
  if (sorted.empty()) return 0;
  const size_t rank = static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5);
  return sorted[rank] / 1000.0;
}

void printTimes(const char* name, std::vector<uint32_t>& times, const char* after) {
  std::sort(times.begin(), times.end());
  double sum = 0;
  for (const uint32_t time : times) sum += time;
  printf("\"%s\": {\"count\": %zu, \"p50_us\": %.2f, \"p99_us\": %.2f, \"mean_us\": %.2f}%s", name,
         times.size(), quantile(times, 0.5), quantile(times, 0.99),
         times.empty() ? 0 : sum / static_cast<double>(times.size()) / 1000, after);
}

/// Reads one word of each page named, in that order.
void measure(const char* pattern, const char* memory, const std::vector<uint32_t>& pages,
             int pagemap, const char* after) {
  std::vector<uint32_t> times[kClasses], all;
  for (auto& list : times) list.reserve(pages.size());
  all.reserve(pages.size());
  for (const uint32_t page : pages) {
    const volatile uint64_t* word =
        reinterpret_cast<const volatile uint64_t*>(memory + page * kPage);
    const Class before = classOf(pagemap, memory + page * kPage);
    const uint64_t began = nowNs();
    const uint64_t value = *word;
    const uint64_t took = nowNs() - began;
    if (value != mix(page)) {
      fprintf(stderr, "fault_latency: wrong contents in page %u\n", page);
      exit(3);
    }
    times[before].push_back(static_cast<uint32_t>(std::min<uint64_t>(took, UINT32_MAX)));
    all.push_back(times[before].back());
  }
  printf("\"%s\": {", pattern);
  for (int c = 0; c < kClasses; c++) printTimes(kClassNames[c], times[c], ", ");
  printTimes("all", all, "}");
  printf("%s", after);
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t size = 512ull << 20, accesses = 20000;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--size") size = strtoull(argv[i + 1], nullptr, 10);
    if (word == "--accesses") accesses = strtoull(argv[i + 1], nullptr, 10);
  }
  const uint64_t pages = size / kPage;
  accesses = std::min(accesses, pages / 2);
  const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  char* memory = static_cast<char*>(
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (pagemap < 0 || memory == MAP_FAILED || accesses == 0) {
    fprintf(stderr, "usage: fault_latency [--size BYTES] [--accesses N]\n");
    return 2;
  }
  for (uint64_t page = 0; page < pages; page++) {
    uint64_t* words = reinterpret_cast<uint64_t*>(memory + page * kPage);
    for (uint64_t i = 0; i < kPage / 8; i++) words[i] = mix(page + i * pages);
  }

  std::vector<uint32_t> order(pages);
  std::iota(order.begin(), order.end(), 0u);
  const std::vector<uint32_t> sequential(order.begin(),
                                         order.begin() + static_cast<long>(accesses));
  for (uint64_t i = pages - 1; i > 0; i--) std::swap(order[i], order[mix(i * 7919) % (i + 1)]);
  order.resize(accesses);

  printf("{\"size_bytes\": %llu, ", static_cast<unsigned long long>(size));
  measure("random", memory, order, pagemap, ", ");
  measure("sequential", memory, sequential, pagemap, "}\n");
  return 0;
}
