// SPDX-License-Identifier: Apache-2.0
// A C++ program of the public API, built against the installed library: containers in heaps,
// failures as values, the same with and without exceptions. `own` or `run` as heaps.c.
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <tidepool/tidepool.hpp>
#include <vector>

namespace tp = tidepool::api;

namespace {

void must(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "%s: %s\n", what, tidepool_error_text());
  std::exit(1);
}

struct alignas(64) Line {
  uint64_t words[8];
};

void useContainers(tp::Heap& heap) {
  {
    std::vector<uint64_t, tp::Allocator<uint64_t>> numbers(1'000'000,
                                                           tp::Allocator<uint64_t>(heap));
    std::iota(numbers.begin(), numbers.end(), 0);
    must(numbers[999'999] == 999'999, "vector");
    auto copy = numbers;
    must(copy == numbers && copy.get_allocator() == numbers.get_allocator(), "copy");
    std::vector<Line, tp::Allocator<Line>> lines(1000, tp::Allocator<Line>(heap));
    must(reinterpret_cast<uintptr_t>(lines.data()) % 64 == 0, "alignment");
    must(heap.stats()->allocated_bytes >= 16'000'000, "it is in the heap");

    tp::MemoryResource resource(heap);
    std::pmr::map<int, std::pmr::string> words(&resource);
    for (int i = 0; i < 10'000; ++i) words[i] = std::string(100, static_cast<char>('a' + i % 26));
    must(words[27] == std::pmr::string(100, 'b'), "map");
    must(resource.is_equal(resource), "equality");
  }
  must(heap.stats()->allocated_bytes == 0, "all of it was freed");
}

void usePlacements(tp::Context& context) {
  auto mixed = context.makeHeap(tp::Placement::interleaved({{"local", 1}, {"cxl", 3}}));
  must(mixed.hasValue(), "interleaved");
  const auto floats = mixed->zeroedSpan<float>(4 << 20);
  must(floats.hasValue() && (*floats)[4'000'000] == 0.0F, "zeros");
  for (float& value : *floats) value = 1.0F;
  must(mixed->stats()->far_bytes[1] >= 8u << 20, "most of it is in the pool");
  must(mixed->free(*floats).hasValue(), "free of a span");
  const auto nowhere = context.makeHeap(tp::Placement::pinned("tape"));
  must(!nowhere && nowhere.failure().status() == TIDEPOOL_NOT_FOUND, "no such tier");
  must(!nowhere.failure().text().empty() && strcmp(nowhere.failure().name(), "not-found") == 0,
       "and it says so");
}

void useMoves(tp::Context& context, tp::Heap& heap) {
  const auto block = heap.zeroedSpan<Line>(100'000);
  must(block.hasValue(), "block");
  (*block)[99'999].words[7] = 7;
  const auto evicted = context.evict(*block);
  must(evicted.hasValue() && evicted->wait(std::chrono::seconds(30)).hasValue(), "evict");
  must(evicted->test()->complete, "complete");
  const auto back = context.prefetch(std::span<const Line>(*block));
  must(back.hasValue() && back->wait(std::chrono::seconds(30)).hasValue(), "prefetch");
  must(context.advise(*block, TIDEPOOL_HINT_READ_MOSTLY).hasValue(), "advise");
  must((*block)[99'999].words[7] == 7, "contents");
  must(!heap.free(&context), "free of a stranger");
}

#if defined(__cpp_exceptions)
void throwsWhenOutOfMemory(tp::Heap& heap) {
  try {
    std::vector<char, tp::Allocator<char>> huge(size_t{1} << 46, tp::Allocator<char>(heap));
    must(false, "64 TiB");
  } catch (const std::bad_alloc&) {
  }
}
#else
void throwsWhenOutOfMemory(tp::Heap&) {}
#endif

}  // namespace

int main(int argc, char** argv) {
  const bool under_run = argc > 1 && strcmp(argv[1], "run") == 0;
  auto bad = tp::Context::open("dram:lots");
  must(!bad && bad.failure().status() == TIDEPOOL_INVALID_ARGUMENT, "bad options");
  auto context = tp::Context::open("dram:96M,far:cxl:256M");
  must(context.hasValue(), "open");
  {
    auto heap = context->makeHeap();
    must(heap.hasValue(), "heap");
    must(context->info()->origin == (under_run ? TIDEPOOL_ORIGIN_RUN : TIDEPOOL_ORIGIN_OWN),
         "origin");
    useContainers(*heap);
    usePlacements(*context);
    useMoves(*context, *heap);
    throwsWhenOutOfMemory(*heap);
    must(context->statsJson()->front() == '{', "statistics");
    must(!context->close(), "close while in use");
  }
  must(context->close().hasValue(), "close");
  puts("ok");
}
