// SPDX-License-Identifier: Apache-2.0
// The balancer over a direct tier, under a program whose few busy pages are far less than what fits
// locally: it has long been looking when they begin to be used, and promotes them all the same.
#include <array>

#include "runtime/base/clock.h"
#include "runtime/stats/stats_fields.h"
#include "tests/migrate/fixture.h"

namespace tidepool {
namespace {

constexpr uint64_t kGranules = 48;  // a third of which fit
constexpr uint64_t kHotGranules = 16;
constexpr uint64_t kHotPages = 4;  // in each of them

constexpr Setup kWatched{Far::kDirect, Eviction::kMove, Io::kAll, /*sampling_cpu=*/1};

class SmallHotSet : public testing::Test {
 protected:
  void SetUp() override {
    Options options =
        TestRuntime::optionsFor(kWatched, Bytes(kGranules / 3 * kGranuleSize), Bytes(256 * kMiB));
    options.far[0].kind = farKind("cxl");
    runtime_ = TestRuntime::startWith(options, std::nullopt);
    ASSERT_TRUE(runtime_);
    auto memory = runtime_->allocate(Bytes(kGranules * kGranuleSize), Bytes(kGranuleSize));
    ASSERT_TRUE(memory);
    bytes_ = static_cast<volatile uint8_t*>(*memory);
    for (uint64_t at = 0; at < kGranules * kGranuleSize; at += kPageSize) bytes_[at] = 1;
  }

  /// Hot pages lie in what was touched last, and so was placed in the far tier.
  volatile uint8_t* hotPage(uint64_t number) const {
    const uint64_t granule = kGranules - kHotGranules + number / kHotPages;
    const uint64_t page = number % kHotPages * (kPagesPerGranule / kHotPages) + 11;
    return bytes_ + granule * kGranuleSize + page * kPageSize;
  }
  uint64_t localHotPages() const {
    uint64_t local = 0;
    for (uint64_t i = 0; i < kHotGranules * kHotPages; ++i) {
      const void* const page = const_cast<const uint8_t*>(hotPage(i));
      const auto where = runtime_->residency(page, Bytes(kPageSize));
      local += where && where->local == PageCount(1) ? 1 : 0;
    }
    return local;
  }
  uint64_t lookedAt() const {
    uint64_t pages = 0;
    for (const SampleStats& source : sourcesOf(runtime_->stats())) pages += source.count.load();
    return pages;
  }

  std::unique_ptr<Runtime> runtime_;
  volatile uint8_t* bytes_ = nullptr;
};

TEST_F(SmallHotSet, IsPromotedAlsoByAProgramThatHasLongUsedLittle) {
  // The window grows with each of up to 16 granules that are watched for it.
  const uint64_t seldom_used = lookedAt() + 24 * 16 * kPagesPerGranule;
  const MonotonicClock clock;
  const Nanoseconds limit = clock.now() + Nanoseconds(120'000'000'000);
  while (lookedAt() < seldom_used && clock.now() < limit) bytes_[0] = bytes_[0] + 1;
  ASSERT_GE(lookedAt(), seldom_used) << "nothing is looked at";
  ASSERT_EQ(localHotPages(), 0u);
  while (localHotPages() < kHotGranules * kHotPages && clock.now() < limit) {
    for (uint64_t i = 0; i < 1000 * kHotGranules * kHotPages; ++i) {
      volatile uint8_t* const byte = hotPage(i % (kHotGranules * kHotPages));
      *byte = *byte + 1;
    }
  }
  EXPECT_EQ(localHotPages(), kHotGranules * kHotPages);
}

}  // namespace
}  // namespace tidepool
