// SPDX-License-Identifier: Apache-2.0
// Gather loops over a memory server: every page has the right bytes, and most are there before they
// are touched. By the kernel's own samples; where it gives none, tests/machine.sh has these left
// out.
#include <random>
#include <thread>
#include <vector>

#include "runtime/os/perf_events.h"
#include "tests/migrate/fixture.h"

namespace tidepool {
namespace {

constexpr uint64_t kPages = 128 * kMiB / kPageSize;
constexpr uint64_t kWords = kPageSize / sizeof(uint64_t);

class Foretell : public testing::Test {
 protected:
  void SetUp() override {
    const auto samples = openKernelPerfPort()->openFaults(static_cast<int>(gettid()));
    if (!samples) GTEST_SKIP() << samples.error().text();
    auto memory = test_.runtime->allocate(Bytes(kPages * kPageSize), Bytes(kGranuleSize));
    ASSERT_TRUE(memory);
    words_ = static_cast<uint64_t*>(*memory);
    for (uint64_t page = 0; page < kPages; ++page) words_[page * kWords + 5] = page;
  }
  std::vector<uint32_t> indexes(uint64_t seed, size_t count) const {
    std::mt19937_64 random(seed);
    std::vector<uint32_t> out(count);
    for (uint32_t& index : out) index = static_cast<uint32_t>(random() % kPages);
    return out;
  }
  /// Not inlined, so that every caller has the same instruction.
  [[gnu::noinline]] static uint64_t gather(const uint64_t* words, const uint32_t* begin,
                                           const uint32_t* end) {
    uint64_t sum = 0;
    for (const uint32_t* at = begin; at != end; ++at) sum += words[*at * kWords + 5] ^ *at;
    return sum;
  }
  const StatsPage& stats() const { return test_.runtime->stats(); }

  static TestRuntime start() {
    Options options = TestRuntime::optionsFor({Far::kRemote, Eviction::kMove}, Bytes(32 * kMiB),
                                              Bytes(256 * kMiB));
    options.foretell = true;
    memserver::ServerOptions server_options;
    server_options.size = Bytes(256 * kMiB + kGranuleSize);
    auto server = memserver::Server::start(server_options);
    if (!server) ADD_FAILURE() << server.error().text();
    TestRuntime::serveFrom(options, (*server)->port());
    return {std::move(*server), TestRuntime::startWith(options, std::nullopt)};
  }

  TestRuntime test_ = start();
  uint64_t* words_ = nullptr;
};

TEST_F(Foretell, AGatherLoopFindsMostPagesThere) {
  const auto index = indexes(1, 60'000);
  EXPECT_EQ(gather(words_, index.data(), index.data() + index.size()), 0u);
  EXPECT_GT(stats().foretold_pages.load(), 10'000u);
  EXPECT_GT(stats().foretold_used.load(), stats().foretold_pages.load() / 2);
  EXPECT_LE(stats().foretold_used.load(), stats().foretold_pages.load());
}

TEST_F(Foretell, ManyThreadsThatGatherAndWriteFindEveryByte) {
  std::vector<std::thread> threads;
  std::atomic<uint64_t> wrong{0};
  for (uint64_t number = 0; number < 6; ++number) {
    threads.emplace_back([&, number] {
      const auto index = indexes(number, 30'000);
      for (size_t from = 0; from < index.size(); from += 500) {
        const uint32_t* const begin = index.data() + from;
        wrong += gather(words_, begin, begin + 500) != 0 ? 1 : 0;
        // A word of its own, in pages that others write and read.
        for (size_t i = 0; i < 500; ++i)
          words_[begin[i] * kWords + 16 + number] = begin[i] + number;
      }
      for (const uint32_t page : index) {
        wrong += words_[page * kWords + 16 + number] != page + number ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_GT(stats().foretold_pages.load(), 0u);
}

// Pages that are on their way, or have just come in on a guess, may be given up at any moment.
TEST_F(Foretell, PagesThatAreDiscardedMeanwhileReadAsZeros) {
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    for (uint64_t seed = 0; !stop; ++seed) {
      const auto index = indexes(seed, 5'000);
      for (const uint32_t* at = index.data(); at != index.data() + index.size(); ++at) {
        const uint64_t word = words_[*at * kWords + 5];
        if (word != 0 && word != *at) ADD_FAILURE() << word << " in page " << *at;
      }
    }
  });
  std::mt19937_64 random(77);
  for (int i = 0; i < 2'000; ++i) {
    const uint64_t page = random() % (kPages - 16);
    ASSERT_TRUE(test_.runtime->discard(words_ + page * kWords, Bytes(16 * kPageSize)));
    EXPECT_EQ(words_[page * kWords + 5], 0u);
  }
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace tidepool
