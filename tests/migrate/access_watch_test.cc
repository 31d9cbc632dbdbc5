// SPDX-License-Identifier: Apache-2.0
// Watching granules of a direct tier: exactly the pages used in the window are seen, no byte
// changes, and what the program does to the range meanwhile stands.
#include "runtime/migrate/direct/access_watch.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <string>

#include "tests/migrate/direct_core.h"

namespace tidepool {
namespace {

class AccessWatchTest : public DirectCoreTest {
 protected:
  void SetUp() override {
    auto tier = DirectFileTier::createEmulated(Bytes(8 * kMiB));
    ASSERT_TRUE(tier);
    ASSERT_NO_FATAL_FAILURE(build(std::move(*tier), PageCount(1024)));
    auto watch = AccessWatch::create(core_);
    ASSERT_TRUE(watch);
    watch_ = std::move(*watch);
    const uintptr_t address = allocate(1);
    ASSERT_NE(address, 0u);
    bytes_ = reinterpret_cast<volatile uint8_t*>(address);
    granule_ = granuleOf(core_.space->pageAt(address));
    ASSERT_TRUE(placeFar(granule_));
    for (uint64_t page = 0; page < kPagesPerGranule; ++page) at(page) = valueOf(page);
  }

  volatile uint8_t& at(uint64_t page) { return bytes_[page * kPageSize + 7]; }
  static uint8_t valueOf(uint64_t page) { return static_cast<uint8_t>(page * 7 + 1); }

  void open() {
    const GranuleLock granule(*core_.space, granule_);
    watch_->open(0, granule, placesOf(*core_.space, granule_));
  }
  AccessWatch::Seen close() {
    const GranuleLock granule(*core_.space, granule_);
    return watch_->close(0, granule);
  }
  /// Makes a page local, so that the granule is in pieces.
  void promote(uint64_t page) { DirectCoreTest::promote(firstPage(granule_) + page, 1); }
  /// Of the tier, by the kernel's word.
  static uint64_t mappedBytes() {
    uint64_t bytes = 0;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("tidepool-cxl-emulated") == std::string::npos) continue;
      const uint64_t start = std::stoull(line, nullptr, 16);
      bytes += std::stoull(line.substr(line.find('-') + 1), nullptr, 16) - start;
    }
    return bytes;
  }
  /// Of those what a core dump has.
  static uint64_t dumpedBytes() {
    uint64_t bytes = 0, size = 0;
    bool tier = false;
    std::ifstream maps("/proc/self/smaps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find('-') < line.find(' ')) {
        tier = line.find("tidepool-cxl-emulated") != std::string::npos;
      } else if (line.starts_with("Size:")) {
        size = std::stoull(line.substr(5)) * kKiB;
      } else if (tier && line.starts_with("VmFlags:") && line.find(" dd") == std::string::npos) {
        bytes += size;
      }
    }
    return bytes;
  }
  void expectBytes() {
    for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
      ASSERT_EQ(at(page), valueOf(page)) << page;
    }
  }

  std::unique_ptr<AccessWatch> watch_;
  volatile uint8_t* bytes_ = nullptr;
  GranuleIndex granule_;
};

TEST_F(AccessWatchTest, DoesNotHideThatAPageDiffersFromItsFarCopy) {
  promote(9);
  promote(11);
  const PageIndex page = firstPage(granule_) + 9;
  const PageWord home = core_.space->word(page);
  const PageWord copied(PageState::kLocal, kFlagFarCopy, home.tier(), home.index());
  change(page, home, copied);
  open();
  const AccessWatch::Seen found = close();
  EXPECT_FALSE(found.watched.local[9]);
  EXPECT_TRUE(found.watched.local[11]);
  change(page, copied, home);
}

TEST_F(AccessWatchTest, SeesExactlyWhatIsReadOrWritten) {
  for (int round = 0; round < 3; ++round) {
    open();
    at(3) = valueOf(3);
    EXPECT_EQ(at(100), valueOf(100));
    const AccessWatch::Seen found = close();
    EXPECT_TRUE(found.watched.direct.all());
    EXPECT_EQ(found.seen.count(), 2u);
    EXPECT_TRUE(found.seen[3] && found.seen[100]);
    expectBytes();
  }
}

TEST_F(AccessWatchTest, NothingStaysMappedWhereItWasAside) {
  const uint64_t before = mappedBytes();
  open();
  (void)close();
  watch_->forgetMappings();
  EXPECT_EQ(mappedBytes(), before) << "a device would be in use still";
  expectBytes();
  open();
  EXPECT_EQ(at(3), valueOf(3));
  EXPECT_EQ(close().seen.count(), 1u) << "it can be watched again";
  expectBytes();
}

TEST_F(AccessWatchTest, ACoreDumpHasAWatchedGranuleOnce) {
  const uint64_t before = dumpedBytes();
  EXPECT_GE(before, kGranuleSize);
  open();
  EXPECT_EQ(dumpedBytes(), before);
  (void)close();
  EXPECT_EQ(dumpedBytes(), before);
}

TEST_F(AccessWatchTest, WhatIsKeptFromCoreDumpsStaysOutOfThem) {
  const uintptr_t secret = core_.space->addressOf(firstPage(granule_) + 16);
  const Bytes size(32 * kPageSize);
  {
    const GranuleLock granule(*core_.space, granule_);
    core_.space->addresses().mark(Mark::kUndumped, secret, size);
    restoreDumpAdvice(core_, granule, secret, size);
  }
  const uint64_t before = dumpedBytes();
  for (int round = 0; round < 2; ++round) {
    open();
    EXPECT_EQ(dumpedBytes(), before);
    (void)close();
    EXPECT_EQ(dumpedBytes(), before);
  }
}

TEST_F(AccessWatchTest, SeesPagesOfGranulesInPieces) {
  for (const uint64_t page : {10, 14, 300}) promote(page);  // runs of 10, 3, 285 and 211
  for (int round = 0; round < 3; ++round) {
    open();
    for (const uint64_t page : {9, 12, 200, 300, 511}) at(page) = valueOf(page);
    EXPECT_EQ(at(14), valueOf(14));  // only read: local pages show writes
    const AccessWatch::Seen found = close();
    EXPECT_EQ(found.watched.direct.count(), kPagesPerGranule - 3);
    EXPECT_EQ(found.watched.local.count(), 3u);
    EXPECT_EQ(found.seen.count(), 5u);
    for (const uint64_t page : {9, 12, 200, 300, 511}) EXPECT_TRUE(found.seen[page]) << page;
    expectBytes();
  }
  promote(20);  // still armed after having been moved
  expectBytes();
}

TEST_F(AccessWatchTest, SaysWhichFaultsItWillCost) {
  const GranuleLock granule(*core_.space, granule_);
  Places few;
  for (const uint64_t page : {1, 2, 3}) few.direct.set(page);
  EXPECT_EQ(watch_->open(0, granule, few), 3u);  // a short run is emptied: each comes back once
  watch_->close(0, granule);
  EXPECT_EQ(watch_->open(0, granule, few), 0u);  // none has
  watch_->close(0, granule);
  few.direct.set();
  EXPECT_EQ(watch_->open(0, granule, few), 0u);
  watch_->close(0, granule);
}

TEST_F(AccessWatchTest, ADiscardMeanwhileStands) {
  open();
  ASSERT_TRUE(ranges_->discard(reinterpret_cast<uintptr_t>(bytes_), Bytes(4 * kPageSize)));
  close();
  for (uint64_t page = 0; page < 4; ++page) EXPECT_EQ(at(page), 0);
  EXPECT_EQ(at(4), valueOf(4));
}

TEST_F(AccessWatchTest, AReleaseMeanwhileStands) {
  open();
  const uintptr_t middle = reinterpret_cast<uintptr_t>(bytes_) + 100 * kPageSize;
  ASSERT_TRUE(ranges_->release(middle, Bytes(kPageSize)));
  const AccessWatch::Seen found = close();
  EXPECT_TRUE(found.watched.direct.none());
  // Taken out of use by the release; the rest is as it was.
  EXPECT_EQ(madvise(reinterpret_cast<void*>(middle), kPageSize, MADV_POPULATE_READ), -1);
  EXPECT_EQ(at(99), valueOf(99));
  EXPECT_EQ(at(101), valueOf(101));
}

TEST_F(AccessWatchTest, AHomeGivenBackMeanwhileIsNobodys) {
  core_.fork.setForked();  // from then on it is asked whether others hold a home
  open();
  const auto address = reinterpret_cast<uintptr_t>(bytes_);
  ASSERT_TRUE(ranges_->release(address, Bytes(kGranuleSize)));
  EXPECT_EQ(ranges_->allocate(Bytes(kGranuleSize), Bytes(kGranuleSize)), address);  // plain again
  ASSERT_EQ(core_.tiers.tier(1).used().value(), 0u);
  EXPECT_TRUE(close().watched.direct.none());
}

TEST_F(AccessWatchTest, AProtectionMeanwhileStands) {
  open();
  ASSERT_TRUE(ranges_->protect(reinterpret_cast<uintptr_t>(bytes_), Bytes(kPageSize), PROT_READ));
  close();
  EXPECT_EQ(madvise(const_cast<uint8_t*>(bytes_), kPageSize, MADV_POPULATE_WRITE), -1);
  expectBytes();
}

}  // namespace
}  // namespace tidepool
