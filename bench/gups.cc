// SPDX-License-Identifier: Apache-2.0
// gups: random updates in a big array, most of them to a hot set of pages that moves half-way. A
// program of its own that knows nothing of Tidepool: plain malloc, plain threads. Prints one JSON
// object. Threads share the array but own alternate words of it, so updates need no atomics and
// none is lost: in the end the sum of all words must have grown by exactly the number of updates
// (--verify). Units: sizes in bytes, times in seconds (options) and CLOCK_MONOTONIC nanoseconds
// (layout file).
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kWordsPerPage = kPage / sizeof(uint64_t);
constexpr uint64_t kIntervalNs = 100'000'000;
// Updates between two looks at the clock: few enough that a batch of page faults stays within an
// interval.
constexpr int kBatch = 64;

struct Settings {
  uint64_t size = 1ull << 30;
  int threads = 2;
  double seconds = 24;
  double hot_pages = 0.10;  // share of the pages that are hot
  double hot_updates =
      0.90;  // share of the updates that go to them; the rest goes to all other pages
  const char* layout = nullptr;
  int verify = 0;
};

/// Each phase's pages: the first `hot` of the order are the hot set.
struct Phase {
  std::vector<uint32_t> order;
};

struct Work {
  const Settings* settings = nullptr;
  uint64_t* words = nullptr;
  const Phase* phases = nullptr;
  uint64_t hot = 0, pages = 0;
  uint64_t start_ns = 0, change_ns = 0, end_ns = 0;
};

struct ThreadState {
  const Work* work = nullptr;
  uint64_t index = 0;
  uint64_t updates = 0;
  std::vector<uint64_t> intervals;
};

uint64_t nowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(t.tv_nsec);
}

/// splitmix64: a full-period generator that is good enough from any seed.
uint64_t nextRandom(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/// A number below `limit`, by multiplication instead of division.
uint64_t below(uint64_t random, uint64_t limit) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(random) * limit) >> 64);
}

Phase makePhase(uint64_t pages, uint64_t seed) {
  Phase phase;
  phase.order.resize(pages);
  std::iota(phase.order.begin(), phase.order.end(), 0u);
  for (uint64_t i = pages - 1; i > 0; i--) {
    std::swap(phase.order[i], phase.order[below(nextRandom(seed), i + 1)]);
  }
  return phase;
}

void* updateLoop(void* argument) {
  ThreadState& mine = *static_cast<ThreadState*>(argument);
  const Work& work = *mine.work;
  const uint64_t threads = static_cast<uint64_t>(work.settings->threads);
  const uint64_t own_words = kWordsPerPage / threads;
  const uint64_t hot_limit =
      static_cast<uint64_t>(work.settings->hot_updates * 18446744073709551615.0);
  uint64_t random = 0x7469646570ull + mine.index;
  for (;;) {
    const uint64_t now = nowNs();
    if (now >= work.end_ns) break;
    const std::vector<uint32_t>& order = work.phases[now < work.change_ns ? 0 : 1].order;
    for (int i = 0; i < kBatch; i++) {
      const uint64_t which = nextRandom(random);
      const uint64_t at = nextRandom(random) < hot_limit
                              ? below(which, work.hot)
                              : work.hot + below(which, work.pages - work.hot);
      const uint64_t word = below(nextRandom(random), own_words) * threads + mine.index;
      work.words[order[at] * kWordsPerPage + word] += 1;
    }
    mine.updates += kBatch;
    const uint64_t interval = (nowNs() - work.start_ns) / kIntervalNs;
    if (interval < mine.intervals.size()) mine.intervals[interval] += kBatch;
  }
  return nullptr;
}

/// Where the array and the hot sets are, for the residency tool; renamed into place when complete.
void writeLayout(const Work& work, const char* path) {
  const std::string partial = std::string(path) + ".part";
  FILE* file = fopen(partial.c_str(), "we");
  if (file == nullptr) {
    perror(partial.c_str());
    exit(1);
  }
  fprintf(file, "base %llu\npages %llu\nhot %llu\nstart %llu\nchange %llu\nend %llu\n",
          static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(work.words)),
          static_cast<unsigned long long>(work.pages), static_cast<unsigned long long>(work.hot),
          static_cast<unsigned long long>(work.start_ns),
          static_cast<unsigned long long>(work.change_ns),
          static_cast<unsigned long long>(work.end_ns));
  for (int phase = 0; phase < 2; phase++) {
    fprintf(file, "set");
    for (uint64_t i = 0; i < work.hot; i++) fprintf(file, " %u", work.phases[phase].order[i]);
    fprintf(file, "\n");
  }
  fclose(file);
  rename(partial.c_str(), path);
}

uint64_t sumOf(const uint64_t* words, uint64_t count) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < count; i++) sum += words[i];
  return sum;
}

double rate(const std::vector<uint64_t>& intervals, size_t from, size_t to) {
  uint64_t updates = 0;
  for (size_t i = from; i < to && i < intervals.size(); i++) updates += intervals[i];
  return to > from ? static_cast<double>(updates) / (static_cast<double>(to - from) * 0.1) : 0;
}

void printReport(const std::vector<ThreadState>& states, double elapsed, const char* verified) {
  std::vector<uint64_t> intervals(states[0].intervals.size());
  uint64_t updates = 0;
  for (const ThreadState& state : states) {
    updates += state.updates;
    for (size_t i = 0; i < intervals.size(); i++) intervals[i] += state.intervals[i];
  }
  const size_t n = intervals.size();
  // Steady: the last quarter of each phase.
  printf(
      "{\"updates\": %llu, \"seconds\": %.3f, \"updates_per_second\": %.0f, \"verified\": %s,"
      " \"steady_updates_per_second\": [%.0f, %.0f], \"interval_seconds\": 0.1, \"intervals\": [",
      static_cast<unsigned long long>(updates), elapsed, static_cast<double>(updates) / elapsed,
      verified, rate(intervals, n / 2 - n / 8, n / 2), rate(intervals, n - n / 8, n));
  for (size_t i = 0; i < n; i++) {
    printf("%s%llu", i == 0 ? "" : ", ", static_cast<unsigned long long>(intervals[i] * 10));
  }
  printf("]}\n");
}

Settings parse(int argc, char** argv) {
  Settings s;
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--verify") {
      s.verify = 1;
      continue;
    }
    i++;
    if (word == "--size") {
      s.size = strtoull(value, nullptr, 10);
    } else if (word == "--threads") {
      s.threads = atoi(value);
    } else if (word == "--seconds") {
      s.seconds = atof(value);
    } else if (word == "--layout") {
      s.layout = value;
    } else {
      fprintf(
          stderr,
          "usage: gups [--size BYTES] [--threads N] [--seconds S] [--layout FILE] [--verify]\n");
      exit(2);
    }
  }
  if (s.size < 64 * kPage || s.threads < 1 || s.threads > 64 || s.seconds <= 0) {
    fprintf(stderr, "gups: needs at least 64 pages, 1 to 64 threads and some time\n");
    exit(2);
  }
  return s;
}

bool runThreads(const Work& work, std::vector<ThreadState>& states) {
  std::vector<pthread_t> threads(states.size());
  for (size_t i = 0; i < states.size(); i++) {
    states[i].work = &work;
    states[i].index = i;
    states[i].intervals.resize(static_cast<size_t>(work.settings->seconds * 10));
    if (pthread_create(&threads[i], nullptr, updateLoop, &states[i]) != 0) {
      fprintf(stderr, "gups: cannot start a thread\n");
      return false;
    }
  }
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  Work work;
  work.settings = &settings;
  work.pages = settings.size / kPage;
  work.hot = std::max<uint64_t>(
      1, static_cast<uint64_t>(static_cast<double>(work.pages) * settings.hot_pages));
  const Phase phases[2] = {makePhase(work.pages, 1), makePhase(work.pages, 2)};
  work.phases = phases;

  void* memory = malloc(settings.size + kPage);
  if (memory == nullptr) {
    perror("gups: malloc");
    return 1;
  }
  work.words =
      reinterpret_cast<uint64_t*>((reinterpret_cast<uintptr_t>(memory) + kPage - 1) & ~(kPage - 1));
  // Random contents: what compresses to nothing would flatter compressed swap.
  uint64_t fill = 42, before = 0;
  for (uint64_t i = 0; i < work.pages * kWordsPerPage; i++)
    before += work.words[i] = nextRandom(fill);

  work.start_ns = nowNs();
  work.change_ns = work.start_ns + static_cast<uint64_t>(settings.seconds * 0.5e9);
  work.end_ns = work.start_ns + static_cast<uint64_t>(settings.seconds * 1e9);
  if (settings.layout != nullptr) writeLayout(work, settings.layout);

  std::vector<ThreadState> states(static_cast<size_t>(settings.threads));
  if (!runThreads(work, states)) return 1;
  const double elapsed = static_cast<double>(nowNs() - work.start_ns) * 1e-9;

  const char* verified = "null";
  uint64_t updates = 0;
  for (const ThreadState& state : states) updates += state.updates;
  if (settings.verify != 0) {
    verified = sumOf(work.words, work.pages * kWordsPerPage) == before + updates ? "true" : "false";
  }
  printReport(states, elapsed, verified);
  free(memory);
  return strcmp(verified, "false") == 0 ? 3 : 0;
}
