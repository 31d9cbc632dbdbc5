// SPDX-License-Identifier: Apache-2.0
// heap_bench: what a heap of the API costs, beside memkind's fixed kind over managed memory and
// malloc. Each thread keeps some thousand blocks and replaces one at random at each step; what is
// timed is a free and an allocation. The ways take turns in each round; then everything is freed,
// and what memory each still holds is said. heap_bench [ROUNDS [SECONDS]]
#include <memkind.h>
#include <tidepool/tidepool.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kLive = 4096;  // blocks a thread
constexpr size_t kKindBytes = size_t{2} << 30;

[[noreturn]] void die(const char* what) {
  fprintf(stderr, "heap_bench: %s: %s\n", what, tidepool_error_text());
  exit(1);
}

struct Way {
  const char* name;
  std::function<void*(size_t)> allocate;
  std::function<void(void*)> release;
  std::function<uint64_t()> held;  // bytes of memory, wherever they are
};

struct Sizes {
  const char* name;
  size_t least, most;
};
constexpr Sizes kSizes[] = {
    {"16 to 256 B", 16, 256}, {"256 B to 8 KiB", 256, 8192}, {"8 to 256 KiB", 8192, 262144}};

/// Steps until the time is over; then frees all.
uint64_t work(const Way& way, const Sizes& sizes, uint64_t seed, double seconds) {
  std::mt19937_64 random(seed);
  std::vector<char*> blocks(kLive);
  const auto make = [&] {
    const size_t size = sizes.least + random() % (sizes.most - sizes.least);
    auto* const block = static_cast<char*>(way.allocate(size));
    if (block == nullptr) die(way.name);
    block[0] = block[size - 1] = 1;
    return block;
  };
  for (char*& block : blocks) block = make();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  uint64_t steps = 0;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 1000; ++i, ++steps) {
      char*& block = blocks[random() % kLive];
      way.release(block);
      block = make();
    }
  }
  for (char* block : blocks) way.release(block);
  return steps;
}

/// Nanoseconds a step and thread.
double measure(const Way& way, const Sizes& sizes, unsigned threads, double seconds) {
  std::vector<uint64_t> steps(threads);
  std::vector<std::thread> running;
  for (unsigned i = 0; i < threads; ++i) {
    running.emplace_back([&, i] { steps[i] = work(way, sizes, i + 1, seconds); });
  }
  for (std::thread& thread : running) thread.join();
  uint64_t sum = 0;
  for (const uint64_t one : steps) sum += one;
  return seconds * 1e9 * threads / static_cast<double>(sum);
}

uint64_t memoryOf(tidepool_heap* heap) {
  tidepool_heap_stats stats{};
  stats.struct_size = sizeof stats;
  if (tidepool_heap_get_stats(heap, &stats) != TIDEPOOL_OK) die("statistics");
  uint64_t sum = stats.local_bytes;
  for (const uint64_t far : stats.far_bytes) sum += far;
  return sum;
}

tidepool_heap* makeHeap(tidepool_context* context) {
  tidepool_heap* heap = nullptr;
  if (tidepool_heap_create(context, nullptr, &heap) != TIDEPOOL_OK) die("heap");
  return heap;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(const std::vector<Way>& ways, int rounds, double seconds) {
  for (const unsigned threads : {1u, 2u}) {
    for (const Sizes& sizes : kSizes) {
      std::vector<std::vector<double>> results(ways.size());
      for (int round = 0; round < rounds; ++round) {
        for (size_t i = 0; i < ways.size(); ++i) {
          const size_t at = (i + static_cast<size_t>(round)) % ways.size();
          results[at].push_back(measure(ways[at], sizes, threads, seconds));
        }
      }
      printf("%-16s %u thread%s", sizes.name, threads, threads == 1 ? " " : "s");
      for (const auto& values : results) printf(" %14.1f", median(values));
      printf("\n");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 5;
  const double seconds = argc > 2 ? atof(argv[2]) : 0.5;
  tidepool_options* options = nullptr;
  tidepool_context* context = nullptr;
  if (tidepool_options_create("far:cxl:4G", &options) != TIDEPOOL_OK) die("options");
  if (tidepool_open(options, &context) != TIDEPOOL_OK) die("open");
  tidepool_options_free(options);
  tidepool_heap* const heap = makeHeap(context);
  tidepool_heap* const ground = makeHeap(context);
  void* const range = tidepool_aligned_alloc(ground, size_t{2} << 20, kKindBytes);
  memkind_t kind = nullptr;
  if (range == nullptr || memkind_create_fixed(range, kKindBytes, &kind) != 0) die("memkind");

  const std::vector<Way> ways = {
      {"tidepool", [heap](size_t size) { return tidepool_alloc(heap, size); },
       [heap](void* block) { tidepool_free(heap, block); }, [heap] { return memoryOf(heap); }},
      {"memkind", [kind](size_t size) { return memkind_malloc(kind, size); },
       [kind](void* block) { memkind_free(kind, block); }, [ground] { return memoryOf(ground); }},
      {"malloc", [](size_t size) { return malloc(size); }, [](void* block) { free(block); },
       [] { return uint64_t{0}; }},
  };
  printf("nanoseconds for a free and an allocation, median of %d rounds of %.1f s\n%-26s", rounds,
         seconds, "");
  for (const Way& way : ways) printf(" %14s", way.name);
  printf("\n");
  compare(ways, rounds, seconds);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  // An arena looks for memory to give back when it is used.
  for (const Way& way : ways) measure(way, kSizes[0], 4, 0.1);
  for (const Way& way : ways) {
    if (const uint64_t bytes = way.held()) {
      printf("%s holds %.1f MiB when all is freed\n", way.name,
             static_cast<double>(bytes) / (1 << 20));
    }
  }
  if (tidepool_heap_trim(heap) != TIDEPOOL_OK) die("trim");
  printf("tidepool holds %.1f MiB when it is trimmed\n",
         static_cast<double>(memoryOf(heap)) / (1 << 20));
  memkind_destroy_kind(kind);
  tidepool_heap_destroy(heap);
  tidepool_heap_destroy(ground);
  tidepool_close(context);
}
