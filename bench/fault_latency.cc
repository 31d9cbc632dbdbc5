// SPDX-License-Identifier: Apache-2.0
// fault_latency: fills a big allocation, then times single reads, one to a page, at random and then
// in order, and at random by many threads at once. Knows nothing of Tidepool; run under it, most
// pages have gone to far memory by the time they are read. Before each read the page's entry in
// /proc/self/pagemap tells what the read will meet: *away* (absent: a fault), *in_place* (a mapped
// pool: a load) or *local*. Prints one JSON object; times in microseconds. Every read is checked
// against what was written; a wrong byte ends the program with status 3.
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
#include <span>
#include <string>
#include <thread>
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

struct Times {
  std::vector<uint32_t> of[kClasses], all;  // nanoseconds
};

/// Reads one word of each page named, in that order. Any thread.
void readPages(const char* memory, std::span<const uint32_t> pages, int pagemap, Times& times) {
  for (auto& list : times.of) list.reserve(pages.size());
  times.all.reserve(pages.size());
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
    times.of[before].push_back(static_cast<uint32_t>(std::min<uint64_t>(took, UINT32_MAX)));
    times.all.push_back(times.of[before].back());
  }
}

/// Reads the pages with so many threads, each its share of them, and prints what it came to.
void measure(const char* name, const char* memory, std::span<const uint32_t> pages, size_t threads,
             int pagemap) {
  std::vector<Times> shares(threads);
  const auto part = [&](size_t i) {
    const size_t begin = pages.size() * i / threads, end = pages.size() * (i + 1) / threads;
    readPages(memory, pages.subspan(begin, end - begin), pagemap, shares[i]);
  };
  const uint64_t began = nowNs();
  std::vector<std::thread> others;
  for (size_t i = 1; i < threads; ++i) others.emplace_back(part, i);
  part(0);
  for (std::thread& other : others) other.join();
  const double seconds = static_cast<double>(nowNs() - began) / 1e9;

  Times whole = std::move(shares[0]);
  const auto append = [](std::vector<uint32_t>& to, const std::vector<uint32_t>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (size_t i = 1; i < threads; ++i) {
    for (int c = 0; c < kClasses; c++) append(whole.of[c], shares[i].of[c]);
    append(whole.all, shares[i].all);
  }
  printf("\"%s\": {\"seconds\": %.4f, \"faults_per_second\": %.0f, ", name, seconds,
         static_cast<double>(whole.of[kAway].size()) / seconds);
  for (int c = 0; c < kClasses; c++) printTimes(kClassNames[c], whole.of[c], ", ");
  printTimes("all", whole.all, "}");
}

/// So many pages at random, none twice.
std::vector<uint32_t> randomPages(uint64_t pages, uint64_t count, uint64_t seed) {
  std::vector<uint32_t> order(pages);
  std::iota(order.begin(), order.end(), 0u);
  for (uint64_t i = pages - 1; i > 0; i--) {
    std::swap(order[i], order[mix(i * 7919 + seed) % (i + 1)]);
  }
  order.resize(count);
  return order;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t size = 512ull << 20, accesses = 20000;
  std::vector<size_t> threads;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--size") size = strtoull(argv[i + 1], nullptr, 10);
    if (word == "--accesses") accesses = strtoull(argv[i + 1], nullptr, 10);
    if (word == "--threads") threads.push_back(strtoull(argv[i + 1], nullptr, 10));
  }
  const uint64_t pages = size / kPage;
  accesses = std::min(accesses, pages / 2);
  const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  char* memory = static_cast<char*>(
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (pagemap < 0 || memory == MAP_FAILED || accesses == 0 ||
      std::find(threads.begin(), threads.end(), 0u) != threads.end()) {
    fprintf(stderr, "usage: fault_latency [--size BYTES] [--accesses N] [--threads N]...\n");
    return 2;
  }
  for (uint64_t page = 0; page < pages; page++) {
    uint64_t* words = reinterpret_cast<uint64_t*>(memory + page * kPage);
    for (uint64_t i = 0; i < kPage / 8; i++) words[i] = mix(page + i * pages);
  }

  std::vector<uint32_t> sequential(accesses);
  std::iota(sequential.begin(), sequential.end(), 0u);
  printf("{\"size_bytes\": %llu, ", static_cast<unsigned long long>(size));
  measure("random", memory, randomPages(pages, accesses, 0), 1, pagemap);
  printf(", ");
  measure("sequential", memory, sequential, 1, pagemap);
  printf(", \"threads\": {");
  for (size_t i = 0; i < threads.size(); ++i) {
    if (i > 0) printf(", ");
    const std::string name = std::to_string(threads[i]);
    measure(name.c_str(), memory, randomPages(pages, accesses, i + 1), threads[i], pagemap);
  }
  printf("}}\n");
  return 0;
}
