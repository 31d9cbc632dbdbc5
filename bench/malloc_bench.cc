// SPDX-License-Identifier: Apache-2.0
// malloc_bench: malloc and free by themselves, 16 B to 1 MiB. Three patterns: a batch allocated and
// freed by the same thread (1 and 2 threads), and blocks that one thread allocates and the other
// frees (2 threads, through a ring each way). Links no allocator: which one is measured is a matter
// of LD_PRELOAD or `tidepool run`.
#include <benchmark/benchmark.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace {

constexpr int kBatch = 64;
constexpr size_t kRing = 64;

/// A block is used as programs use it: at least its first and its last bytes are written.
void touch(char* block, size_t size) {
  block[0] = 1;
  block[size - 1] = 1;
  benchmark::DoNotOptimize(block);
}

/// Long-lived small blocks, at least one of them above a batch's worth of space, as a program that
/// has run for a while has many. Without them glibc would give the top of its heap back after every
/// batch and fault it in again, and its time would be the kernel's.
class Settled {
 public:
  explicit Settled(size_t size) {
    std::array<char*, kBatch> blocks{};
    for (int round = 0; round < 2;
         round++) {  // the first free of a big block moves glibc's mmap threshold
      for (char*& block : blocks) block = static_cast<char*>(malloc(size));
      char* const highest = *std::max_element(blocks.begin(), blocks.end());
      while (count_ < kept_.size()) {
        char* const kept = kept_[count_++] = static_cast<char*>(malloc(2000));
        if (kept > highest) break;
      }
      for (char* block : blocks) free(block);
    }
  }
  ~Settled() {
    for (size_t i = 0; i < count_; i++) free(kept_[i]);
  }
  Settled(const Settled&) = delete;
  Settled& operator=(const Settled&) = delete;

 private:
  std::array<char*, 64> kept_{};
  size_t count_ = 0;
};

void sameThread(benchmark::State& state) {
  const size_t size = static_cast<size_t>(state.range(0));
  const Settled settled(size);
  std::array<char*, kBatch> blocks{};
  for (auto _ : state) {
    for (char*& block : blocks) {
      block = static_cast<char*>(malloc(size));
      touch(block, size);
    }
    // Freed in another order than allocated: odd ones first, then even ones from the end.
    for (size_t i = 1; i < kBatch; i += 2) free(blocks[i]);
    for (size_t i = kBatch; i >= 2; i -= 2) free(blocks[i - 2]);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * kBatch);
}

/// One writer, one reader. The slots' release/acquire pair hands a block and its bytes over.
struct Ring {
  std::array<std::atomic<char*>, kRing> slots{};
  alignas(64) size_t head = 0;  // the writer's
  alignas(64) size_t tail = 0;  // the reader's

  bool put(char* block) {
    std::atomic<char*>& slot = slots[head % kRing];
    if (slot.load(std::memory_order_acquire) != nullptr) return false;
    slot.store(block, std::memory_order_release);
    head++;
    return true;
  }
  char* take() {
    std::atomic<char*>& slot = slots[tail % kRing];
    char* block = slot.load(std::memory_order_acquire);
    if (block == nullptr) return nullptr;
    slot.store(nullptr, std::memory_order_release);
    tail++;
    return block;
  }
};
Ring rings[2];  // rings[i] is written by thread i, read by the other one

void crossThread(benchmark::State& state) {
  const size_t size = static_cast<size_t>(state.range(0));
  const Settled settled(size);
  Ring& out = rings[state.thread_index()];
  Ring& in = rings[1 - state.thread_index()];
  int64_t handed = 0;
  for (auto _ : state) {
    for (int i = 0; i < kBatch; i++) {
      char* block = static_cast<char*>(malloc(size));
      touch(block, size);
      if (out.put(block)) {
        handed++;
      } else {
        free(block);  // the reader is not running: never wait for it
        sched_yield();
      }
      free(in.take());
    }
  }
  // The library's barrier at the end of the loop has passed: nobody puts any more.
  while (char* block = in.take()) free(block);
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * kBatch);
  state.counters["handed"] =
      benchmark::Counter(static_cast<double>(handed) / kBatch, benchmark::Counter::kAvgIterations);
}

void sizes(benchmark::internal::Benchmark* b) {
  for (const int64_t size : {16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576}) b->Arg(size);
  b->UseRealTime()->MinTime(0.05);
}

BENCHMARK(sameThread)->Apply(sizes)->Threads(1);
BENCHMARK(sameThread)->Apply(sizes)->Threads(2);
BENCHMARK(crossThread)->Apply(sizes)->Threads(2);

}  // namespace

BENCHMARK_MAIN();
