// SPDX-License-Identifier: Apache-2.0
// Local pages on the node of a numa: tier. On a machine with one node all local pages are strays,
// and are moved to where they are: what is asked, counted and left alone can be seen all the same.
// Pages that really move are seen in the virtual machines (tests/vm/tests/numa_strays.py).
#include "runtime/migrate/direct/strays.h"

#include <gtest/gtest.h>

#include "runtime/os/numa.h"
#include "runtime/tier/numa_tier.h"
#include "tests/migrate/direct_core.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kSecond(1'000'000'000);

class StraysTest : public DirectCoreTest {
 protected:
  void buildAndFill(std::unique_ptr<DirectTier> tier) {
    ASSERT_NO_FATAL_FAILURE(build(std::move(tier), PageCount(4096)));
    const uintptr_t address = allocate(2);
    ASSERT_NE(address, 0u);
    bytes_ = reinterpret_cast<volatile uint8_t*>(address);
    first_ = core_.space->pageAt(address);
    for (const uint64_t granule : {0, 1}) placeAndFill(granule);
  }
  void buildOnNode() {
    os::NumaNodes nodes = os::readNumaNodes();
    nodes.nodes[1] = {1, false, Bytes(kGiB), Bytes(), 20, {}};
    nodes.count = 2;
    auto tier = NumaTier::open(nodes.nodes[0].number, nodes);
    ASSERT_TRUE(tier) << tier.error().text();
    buildAndFill(std::move(*tier));
  }
  void placeAndFill(uint64_t granule) {
    ASSERT_TRUE(placeFar(granuleOf(first_ + granule * kPagesPerGranule)));
    for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
      bytes_[(granule * kPagesPerGranule + i) * kPageSize] = static_cast<uint8_t>(i * 5 + granule);
    }
  }
  void expectContents() {
    for (uint64_t i = 0; i < 2 * kPagesPerGranule; ++i) {
      const auto wanted = static_cast<uint8_t>(i % kPagesPerGranule * 5 + i / kPagesPerGranule);
      ASSERT_EQ(bytes_[i * kPageSize], wanted) << i;
    }
  }

  volatile uint8_t* bytes_ = nullptr;
  PageIndex first_;
};

TEST_F(StraysTest, LocalPagesOnTheFarNodeAreMovedBackOnceASecond) {
  buildOnNode();
  promote(first_ + 3, 5);
  promote(first_ + kPagesPerGranule + 100, 40);
  Strays strays(core_);
  strays.tick(kSecond);
  EXPECT_EQ(core_.stats->strayed_pages, 45u);
  EXPECT_EQ(core_.stats->returned_pages, 45u);
  strays.tick(kSecond + kSecond / 2);
  EXPECT_EQ(core_.stats->strayed_pages, 45u);
  strays.tick(kSecond + kSecond);
  EXPECT_EQ(core_.stats->strayed_pages, 90u);
  expectContents();
}

TEST_F(StraysTest, PagesOfTheTierItselfStay) {
  buildOnNode();
  Strays strays(core_);
  strays.tick(kSecond);
  EXPECT_EQ(core_.stats->strayed_pages, 0u);
  expectContents();
}

TEST_F(StraysTest, WithoutANodeNothingIsAsked) {
  auto tier = DirectFileTier::createEmulated(Bytes(8 * kMiB));
  ASSERT_TRUE(tier);
  buildAndFill(std::move(*tier));
  promote(first_, 512);
  Strays strays(core_);
  strays.tick(kSecond);
  EXPECT_EQ(core_.stats->strayed_pages, 0u);
}

}  // namespace
}  // namespace tidepool
