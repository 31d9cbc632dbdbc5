// SPDX-License-Identifier: Apache-2.0
// The balancer itself over a direct tier, under the kernel, in a time of the test's own: pages are
// used at random, each kind so often a second, between the balancer's steps.
#include "runtime/migrate/direct/balancer.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/migrate/direct_core.h"
#include "tests/migrate/whole_granules_fixture.h"

namespace tidepool {
namespace {

constexpr uint64_t kLocalGranules = 8, kFarGranules = 24;
constexpr uint64_t kPages = (kLocalGranules + kFarGranules) * kPagesPerGranule;

/// Pages that are used so often a second each.
struct Kind {
  std::vector<uint64_t> pages;
  double rate;
};

class BalancerTest : public DirectCoreTest {
 protected:
  void SetUp() override {
    auto tier = DirectFileTier::createEmulated(Bytes(kPages * kPageSize + 8 * kMiB));
    ASSERT_TRUE(tier);
    core_.options.sampling_cpu = 1;
    ASSERT_NO_FATAL_FAILURE(
        build(asTier(std::move(*tier)), PageCount(kLocalGranules * kPagesPerGranule)));
    auto balancer = Balancer::create(core_, *mover_);
    ASSERT_TRUE(balancer) << balancer.error().text();
    balancer_ = std::move(*balancer);
    fill();
  }

  virtual std::unique_ptr<DirectTier> asTier(std::unique_ptr<DirectFileTier> file) { return file; }

  /// The first granules are local, and fill local memory but for a little; the others are far.
  void fill() {
    const uintptr_t address = allocate(kPages / kPagesPerGranule);
    ASSERT_NE(address, 0u);
    bytes_ = reinterpret_cast<volatile uint8_t*>(address);
    first_ = core_.space->pageAt(address);
    for (uint64_t page = 0; page < kPages; page += kPagesPerGranule) {
      ASSERT_TRUE(placeFar(granuleOf(first_ + page)));
    }
    for (uint64_t page = 0; page < kPages; ++page) bytes_[page * kPageSize] = valueOf(page);
    for (uint64_t granule = 0; granule < kLocalGranules; ++granule) {
      ASSERT_NO_FATAL_FAILURE(makeLocal(granule));
    }
    core_.stats->managed_bytes = kPages * kPageSize;
    core_.stats->promotions = 0;
  }
  virtual void makeLocal(uint64_t granule) {
    promote(first_ + granule * kPagesPerGranule,
            kPagesPerGranule - (granule + 1 == kLocalGranules ? 200 : 0));
  }
  static uint8_t valueOf(uint64_t page) { return static_cast<uint8_t>(page * 7 + 1); }

  /// Lets the program run for so long, as far as the balancer sees it.
  void use(const std::vector<Kind>& kinds, double seconds) {
    const Nanoseconds end = now_ + Nanoseconds(static_cast<uint64_t>(seconds * 1e9));
    while (now_ < end) {
      const Nanoseconds delay = balancer_->step(now_);
      now_ += delay;
      for (const Kind& kind : kinds) {
        std::bernoulli_distribution used(1 - std::exp(-kind.rate * 1e-9 * double(delay.value())));
        for (const uint64_t page : kind.pages) {
          if (used(random_)) bytes_[page * kPageSize + 1] = bytes_[page * kPageSize + 1] + 1;
        }
      }
    }
  }
  uint64_t localOf(const std::vector<uint64_t>& pages) const {
    uint64_t local = 0;
    for (const uint64_t page : pages) {
      local += core_.space->word(first_ + page).state() == PageState::kLocal ? 1 : 0;
    }
    return local;
  }
  void TearDown() override {
    if (bytes_ == nullptr) return;
    balancer_->rest();
    for (uint64_t page = 0; page < kPages; ++page) {
      ASSERT_EQ(bytes_[page * kPageSize], valueOf(page)) << page;
    }
  }

  /// Every so many pages of the far granules, or of the local ones.
  static std::vector<uint64_t> everyFar(uint64_t step) {
    std::vector<uint64_t> pages;
    for (uint64_t at = kLocalGranules * kPagesPerGranule + 11; at < kPages; at += step) {
      pages.push_back(at);
    }
    return pages;
  }
  static std::vector<uint64_t> everyLocal(uint64_t step) {
    std::vector<uint64_t> pages;
    for (uint64_t at = 3; at < (kLocalGranules - 1) * kPagesPerGranule; at += step) {
      pages.push_back(at);
    }
    return pages;
  }

  std::unique_ptr<Balancer> balancer_;
  volatile uint8_t* bytes_ = nullptr;
  PageIndex first_;
  Nanoseconds now_{1'000'000'000};
  std::mt19937 random_{5};
};

// A page that is used 2,000 times a second is seen in every window, one that is used once a second
// in one of 15; with few pages in use neither is one of many that local memory would be full of.
TEST_F(BalancerTest, PromotesAFewHotPagesAfterALongTimeOfLittleUse) {
  use({}, 60);
  EXPECT_EQ(core_.stats->promotions, 0u);
  const Kind hot{everyFar(192), 2000};
  use({hot}, 20);
  EXPECT_EQ(localOf(hot.pages), hot.pages.size());
  use({hot}, 20);
  EXPECT_EQ(localOf(hot.pages), hot.pages.size()) << "and they stay";
  EXPECT_LT(core_.stats->promotions, 2 * hot.pages.size());
}

// As under a GPU, whose driver's descriptors are open all the time.
TEST_F(BalancerTest, WhatMayPinHoldsPromotionsUnlessTheOperatorSaysNever) {
  const UniqueFd file(open("/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600));
  ASSERT_TRUE(file.valid());
  const Kind hot{everyFar(64), 2000};
  use({hot}, 20);
  EXPECT_EQ(core_.stats->promotions, 0u);
  EXPECT_GT(core_.stats->promotions_held_by_pins, 1024u);
  ASSERT_EQ(core_.stats->error_count, 1u) << "said, and once";
  char line[256];
  readStatsError(*core_.stats, 0, line);
  EXPECT_NE(std::string(line).find("--conf pins:never"), std::string::npos) << line;
  core_.options.pins = Pins::kNever;
  use({hot}, 20);
  EXPECT_GT(localOf(hot.pages), hot.pages.size() * 9 / 10);
}

TEST_F(BalancerTest, FindsThemAgainWhenTheyAreOthers) {
  const Kind before{everyFar(192), 2000};
  use({before}, 60);
  EXPECT_EQ(localOf(before.pages), before.pages.size());
  Kind after{everyFar(160), 2000};
  for (uint64_t& page : after.pages) page += 5;
  use({after}, 120);
  EXPECT_GE(localOf(after.pages), after.pages.size() * 9 / 10);
}

TEST_F(BalancerTest, HardlyMovesPagesThatAreUsedOnceASecond) {
  const Kind warm{everyFar(4), 1}, local{everyLocal(1), 1}, hot{everyFar(190), 2000};
  use({warm, hot}, 60);
  EXPECT_GE(localOf(hot.pages), hot.pages.size() * 9 / 10);
  const uint64_t before = core_.stats->promotions;
  const uint64_t stayed = localOf(local.pages);
  use({warm, local, hot}, 120);
  const uint64_t promoted = core_.stats->promotions - before;
  // Believed at the first sighting, each was promoted 25 times in these two minutes.
  EXPECT_LT(promoted, 2 * warm.pages.size());
  // What nobody needs the room of stays where it is.
  EXPECT_GT(localOf(local.pages), stayed * 3 / 4) << stayed << " before";
}

// A granule that is hot as a whole comes as a whole: more room has to be made than for single
// pages. Why the order of looks matters, too: spread_order_test.cc.
TEST_F(BalancerTest, PromotesAHotRangeInOnePiece) {
  Kind hot{{}, 2000};
  for (uint64_t page = 0; page < 6 * kPagesPerGranule; ++page) {
    hot.pages.push_back(20 * kPagesPerGranule + page);
  }
  use({hot}, 20);
  EXPECT_GE(localOf(hot.pages), hot.pages.size() * 9 / 10);
}

/// Over a tier that can only be mapped in whole granules.
class WholeBalancerTest : public BalancerTest {
 protected:
  std::unique_ptr<DirectTier> asTier(std::unique_ptr<DirectFileTier> file) override {
    return std::make_unique<WholeTier>(std::move(file));
  }
  void makeLocal(uint64_t granule) override {
    if (granule + 2 >= kLocalGranules) return;  // room for two
    const GranuleLock locked(*core_.space, granuleOf(first_) + granule);
    ASSERT_TRUE(mover_->whole.promote(locked));
  }
};

// Moving a granule costs as much as moving forty pages by themselves: a use or two of any of its
// pages now and then is no reason.
TEST_F(WholeBalancerTest, PromotesHotGranulesAndHardlyAnyThatIsSeldomUsed) {
  Kind hot{{}, 20}, warm{everyFar(4), 0.02};
  for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
    hot.pages.push_back(20 * kPagesPerGranule + page);
  }
  use({warm}, 60);
  EXPECT_LE(core_.stats->promotions, 2 * kPagesPerGranule);
  use({warm, hot}, 30);
  EXPECT_EQ(localOf(hot.pages), kPagesPerGranule);
}

}  // namespace
}  // namespace tidepool
