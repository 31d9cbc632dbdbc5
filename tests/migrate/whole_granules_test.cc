// SPDX-License-Identifier: Apache-2.0
// A tier that can only be mapped in whole granules, as device-DAX: all of a granule goes there or
// none, and comes back so; parts that are given back and taken again read as zeros, the rest keeps
// its bytes. With TIDEPOOL_TEST_DAX=/dev/daxN.M the tier is that device: its contents are lost.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "runtime/migrate/access_watch.h"
#include "runtime/migrate/granule_mover.h"
#include "runtime/migrate/range_ops.h"
#include "runtime/migrate/shared_policy.h"
#include "runtime/os/memory.h"
#include "runtime/stats/stats_region.h"
#include "runtime/tier/direct_file_tier.h"

namespace tidepool {
namespace {

/// Refuses parts of granules in the kernel's way: what was mapped there is gone by then.
class WholeTier final : public DirectTier {
 public:
  explicit WholeTier(std::unique_ptr<DirectFileTier> inner) : inner_(std::move(inner)) {}
  const char* name() const override { return "dax:test"; }
  Bytes capacity() const override { return inner_->capacity(); }
  Bytes used() const override { return inner_->used(); }
  Result<FrameRun> allocate(PageCount wanted) override { return inner_->allocate(wanted); }
  void release(FrameRun run) override { inner_->release(run); }
  Status read(FrameRun run, std::byte* memory) override { return inner_->read(run, memory); }
  Status write(FrameRun run, const std::byte* memory) override {
    return inner_->write(run, memory);
  }
  FrameTable& table() override { return inner_->table(); }
  PageCount mapUnit() const override { return PageCount(kPagesPerGranule); }
  Status mapFrames(FrameRun run, void* address) override {
    ++maps;
    if (refuse || run.first.value() % kPagesPerGranule != 0 || run.count != mapUnit()) {
      if (!refuse) ++torn;
      return fail(ErrorCode::kInvalidArgument, "unaligned");
    }
    return inner_->mapFrames(run, address);
  }
  Status erase(FrameRun run) override { return inner_->erase(run); }
  bool soleHolder(FrameRun run) override { return inner_->soleHolder(run); }
  void preferHuge(FrameRun run) override { inner_->preferHuge(run); }
  std::byte* frameMemory(FrameIndex frame) const override { return inner_->frameMemory(frame); }
  Nanoseconds extraLoadLatency() const override { return inner_->extraLoadLatency(); }
  bool emulated() const override { return false; }

  bool refuse = false;
  int maps = 0, torn = 0;

 private:
  std::unique_ptr<DirectFileTier> inner_;
};

class WholeGranules : public testing::Test {
 protected:
  void SetUp() override {
    auto region = StatsRegion::create("managed");
    ASSERT_TRUE(region);
    stats_.emplace(std::move(*region));
    core_.stats = &stats_->page();
    auto port = openKernelFaultPort(MovePolicy::kIfSupported);
    auto barrier = openKernelWriteBarrier();
    auto space = ManagedSpace::create(Bytes(kGiB));
    const char* const device = getenv("TIDEPOOL_TEST_DAX");
    auto tier = device != nullptr ? DirectFileTier::openDax(device, Bytes(8 * kMiB))
                                  : DirectFileTier::createEmulated(Bytes(8 * kMiB));
    ASSERT_TRUE(port && barrier && space && tier);
    core_.port = std::move(*port);
    core_.barrier = std::move(*barrier);
    core_.space = std::move(*space);
    auto whole = std::make_unique<WholeTier>(std::move(*tier));
    tier_ = whole.get();
    core_.tiers.add(std::unique_ptr<DirectTier>(std::move(whole)));
    ASSERT_TRUE(core_.need_memory.open() && core_.freed_memory.open());
    VictimConfig config;
    config.capacity = PageCount(1024);
    core_.budget.setLimit(PageCount(1024));
    auto policy = SharedPolicy::create(config, PageCount(core_.space->pageEnd().value()));
    auto mover = GranuleMover::create(core_);
    ASSERT_TRUE(policy && mover);
    policy_ = std::move(*policy);
    mover_ = std::move(*mover);
    ranges_ = std::make_unique<RangeOps>(core_, *policy_, *mover_);
    const auto address = ranges_->allocate(Bytes(kGranuleSize), Bytes(kGranuleSize));
    ASSERT_TRUE(address);
    start_ = *address;
    granule_ = granuleOf(core_.space->pageAt(*address));
  }

  volatile uint8_t& at(uint64_t page) {
    return reinterpret_cast<volatile uint8_t*>(start_)[page * kPageSize + 7];
  }
  static uint8_t valueOf(uint64_t page) { return static_cast<uint8_t>(page * 7 + 1); }
  uintptr_t addressOf(uint64_t page) const { return start_ + page * kPageSize; }

  /// Gives the page bytes, as the fault service does.
  void makeLocal(uint64_t page) {
    std::vector<std::byte> bytes(kPageSize, std::byte{valueOf(page)});
    ASSERT_EQ(core_.port->copy(addressOf(page), bytes.data(), Bytes(kPageSize), Wake::kYes).outcome,
              PortOutcome::kDone);
    const PageIndex index = firstPage(granule_) + page;
    ASSERT_TRUE(
        core_.space->change(index, core_.space->word(index), PageWord(PageState::kLocal, 0, 0, 0)));
    core_.budget.charge(PageCount(1));
  }
  bool placeFar() {
    MutexLock lock(core_.space->lockOf(granule_));
    return mover_->placeFar(firstPage(granule_));
  }

  bool promoteWhole() {
    MutexLock lock(core_.space->lockOf(granule_));
    return mover_->promoteWhole(granule_);
  }

  std::optional<StatsRegion> stats_;
  Core core_;
  WholeTier* tier_ = nullptr;
  std::unique_ptr<SharedPolicy> policy_;
  std::unique_ptr<GranuleMover> mover_;
  std::unique_ptr<RangeOps> ranges_;
  uintptr_t start_ = 0;
  GranuleIndex granule_;
};

TEST_F(WholeGranules, PagesThatAreLocalGoAlong) {
  for (const uint64_t page : {3, 4, 5, 100, 511}) makeLocal(page);
  ASSERT_TRUE(placeFar());
  EXPECT_EQ(tier_->torn, 0);
  for (const uint64_t page : {3, 4, 5, 100, 511}) EXPECT_EQ(at(page), valueOf(page)) << page;
  EXPECT_EQ(at(6), 0) << "what was never touched";
  EXPECT_EQ(placesOf(*core_.space, granule_).direct.count(), kPagesPerGranule);
  EXPECT_EQ(core_.budget.held(), PageCount(0));
}

TEST_F(WholeGranules, IfTheDeviceRefusesAllStaysAsItWas) {
  for (const uint64_t page : {0, 7, 8, 510}) makeLocal(page);
  tier_->refuse = true;
  EXPECT_FALSE(placeFar());
  for (const uint64_t page : {0, 7, 8, 510}) EXPECT_EQ(at(page), valueOf(page)) << page;
  EXPECT_EQ(placesOf(*core_.space, granule_).local.count(), 4u);
  EXPECT_EQ(core_.budget.held(), PageCount(4));
  EXPECT_EQ(tier_->used(), Bytes()) << "no place is kept";
  tier_->refuse = false;
  EXPECT_TRUE(placeFar());
  EXPECT_EQ(at(510), valueOf(510));
}

TEST_F(WholeGranules, PartOfWhatIsLocalIsNotDemoted) {
  for (const uint64_t page : {3, 4, 9}) makeLocal(page);
  MutexLock lock(core_.space->lockOf(granule_));
  EXPECT_EQ(mover_->demote(firstPage(granule_) + 3, 2), 0u) << "page 9 would go, too";
  EXPECT_EQ(tier_->used(), Bytes());
  EXPECT_EQ(mover_->demote(firstPage(granule_) + 3, 7), 3u);
  EXPECT_EQ(at(9), valueOf(9));
}

TEST_F(WholeGranules, ReleasedPartsAreTakenAgainAndReadAsZeros) {
  ASSERT_TRUE(placeFar());
  for (uint64_t page = 0; page < kPagesPerGranule; ++page) at(page) = valueOf(page);
  ASSERT_TRUE(ranges_->release(addressOf(10), Bytes(20 * kPageSize)));
  ASSERT_TRUE(ranges_->claim(addressOf(15), Bytes(5 * kPageSize)));
  for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
    if (page >= 10 && page < 15) continue;
    if (page >= 20 && page < 30) continue;
    EXPECT_EQ(at(page), page >= 15 && page < 20 ? 0 : valueOf(page)) << page;
  }
  EXPECT_EQ(tier_->torn, 0);
}

TEST_F(WholeGranules, TheLastReleaseGivesThePlaceBack) {
  ASSERT_TRUE(placeFar());
  at(400) = 9;
  ASSERT_TRUE(ranges_->release(addressOf(0), Bytes(200 * kPageSize)));
  EXPECT_EQ(tier_->used(), Bytes(kGranuleSize));
  ASSERT_TRUE(ranges_->withdraw(addressOf(300), Bytes(212 * kPageSize)));
  EXPECT_EQ(at(250), 0);
  EXPECT_EQ(tier_->used(), Bytes(kGranuleSize)) << "pages 200 to 299 are in use";
  ASSERT_TRUE(ranges_->release(addressOf(200), Bytes(312 * kPageSize)));
  EXPECT_EQ(tier_->used(), Bytes());
  EXPECT_EQ(placesOf(*core_.space, granule_).direct.count(), 0u);
  ASSERT_TRUE(ranges_->claim(start_, Bytes(kGranuleSize)));
  ASSERT_TRUE(placeFar());
  EXPECT_EQ(at(400), 0);
}

TEST_F(WholeGranules, ComesBackAsAWholeAndGoesAgain) {
  ASSERT_TRUE(placeFar());
  for (uint64_t page = 0; page < kPagesPerGranule; ++page) at(page) = valueOf(page);
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_TRUE(promoteWhole());
    EXPECT_EQ(placesOf(*core_.space, granule_).local.count(), kPagesPerGranule);
    EXPECT_EQ(core_.budget.held(), PageCount(kPagesPerGranule));
    EXPECT_EQ(tier_->used(), Bytes());
    for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
      ASSERT_EQ(at(page), static_cast<uint8_t>(valueOf(page) + turn)) << page;
      at(page) = static_cast<uint8_t>(valueOf(page) + turn + 1);
    }
    EXPECT_FALSE(promoteWhole()) << "there already";
    ASSERT_TRUE(placeFar());
    EXPECT_EQ(core_.budget.held(), PageCount(0));
  }
  EXPECT_EQ(core_.stats->promotions, 3 * kPagesPerGranule);
  EXPECT_EQ(tier_->torn, 0);
}

TEST_F(WholeGranules, WithoutRoomItStays) {
  ASSERT_TRUE(placeFar());
  at(9) = 9;
  core_.budget.setLimit(PageCount(kPagesPerGranule - 1));
  EXPECT_FALSE(promoteWhole());
  EXPECT_EQ(at(9), 9);
  EXPECT_EQ(core_.budget.held(), PageCount(0));
  EXPECT_EQ(tier_->used(), Bytes(kGranuleSize));
}

TEST_F(WholeGranules, WhatIsNotPlainStays) {
  ASSERT_TRUE(placeFar());
  ASSERT_TRUE(ranges_->release(addressOf(100), Bytes(kPageSize)));
  EXPECT_FALSE(promoteWhole());
  EXPECT_EQ(tier_->used(), Bytes(kGranuleSize));
}

TEST_F(WholeGranules, WhatDevicesMayWriteToStays) {
  ASSERT_TRUE(placeFar());
  for (const uint64_t page : {0, 77, 511}) at(page) = valueOf(page);
  const UniqueFd direct(open("/tmp", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600));
  if (!direct.valid()) GTEST_SKIP() << "no O_DIRECT here";
  EXPECT_FALSE(promoteWhole());
  for (const uint64_t page : {0, 77, 511}) EXPECT_EQ(at(page), valueOf(page));
  at(78) = 78;
  EXPECT_EQ(placesOf(*core_.space, granule_).direct.count(), kPagesPerGranule);
  EXPECT_EQ(core_.budget.held(), PageCount(0));
}

TEST_F(WholeGranules, NoStoreIsLostAndNoReadIsWrongMeanwhile) {
  ASSERT_TRUE(placeFar());
  auto* const words = reinterpret_cast<std::atomic<uint64_t>*>(start_);
  constexpr uint64_t kWordsPerPage = kPageSize / sizeof(uint64_t);
  const auto constant = [](uint64_t page) { return page * 2654435761u + 1; };
  for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
    words[page * kWordsPerPage] = constant(page);
  }
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0};
  std::vector<uint64_t> stored(kPagesPerGranule, 0);
  std::thread writer([&] {
    std::mt19937 random(1);
    while (!stop) {
      const uint64_t page = random() % kPagesPerGranule;
      std::atomic<uint64_t>& word = words[page * kWordsPerPage + 1];
      if (word.load(std::memory_order_relaxed) != stored[page]) ++wrong;
      word.store(++stored[page], std::memory_order_relaxed);
    }
  });
  std::thread reader([&] {
    std::mt19937 random(2);
    while (!stop) {
      const uint64_t page = random() % kPagesPerGranule;
      if (words[page * kWordsPerPage].load(std::memory_order_relaxed) != constant(page)) ++wrong;
    }
  });
  // By system calls, as well: these wait in the kernel.
  std::thread caller([&] {
    std::mt19937 random(3);
    while (!stop) {
      const uint64_t page = random() % kPagesPerGranule;
      uint64_t got = 0;
      const iovec to{&got, sizeof got};
      const iovec from{reinterpret_cast<void*>(addressOf(page)), sizeof got};
      const ssize_t done = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
      if (done != sizeof got || got != constant(page)) ++wrong;
    }
  });
  // An emulated device copies a granule in seconds.
  const int turns = getenv("TIDEPOOL_TEST_DAX") != nullptr ? 3 : 100;
  for (int turn = 0; turn < turns; ++turn) {
    ASSERT_TRUE(promoteWhole());
    ASSERT_TRUE(placeFar());
  }
  stop = true;
  writer.join();
  reader.join();
  caller.join();
  EXPECT_EQ(wrong, 0u);
  for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
    ASSERT_EQ(words[page * kWordsPerPage + 1].load(), stored[page]) << page;
  }
}

TEST_F(WholeGranules, AgreesWithAModelOfBytes) {
  ASSERT_TRUE(placeFar());
  std::mt19937 random(7);
  std::vector<int> model(kPagesPerGranule, 0);  // -1: not handed out
  for (int step = 0; step < 400; ++step) {
    const uint64_t first = random() % kPagesPerGranule;
    const uint64_t count = 1 + random() % std::min<uint64_t>(40, kPagesPerGranule - first);
    const Bytes size(count * kPageSize);
    const auto begin = model.begin() + static_cast<long>(first);
    const auto end = begin + static_cast<long>(count);
    if (std::find(begin, end, -1) == end) {
      if (random() % 3 == 0) {
        ASSERT_TRUE(ranges_->discard(addressOf(first), size));
        std::fill(begin, end, 0);
      } else if (random() % 2 == 0 && first > 0) {  // page 0 keeps the granule in use
        ASSERT_TRUE(ranges_->release(addressOf(first), size));
        std::fill(begin, end, -1);
      } else {
        for (uint64_t page = first; page < first + count; ++page) {
          const auto value = static_cast<uint8_t>(random() % 200);
          at(page) = value;
          model[page] = value;
        }
      }
    } else if (std::count(begin, end, -1) == static_cast<long>(count)) {
      ASSERT_TRUE(ranges_->claim(addressOf(first), size));
      std::fill(begin, end, 0);
    }
    for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
      if (model[page] >= 0) {
        ASSERT_EQ(at(page), model[page]) << page << " at step " << step;
      }
    }
  }
  EXPECT_EQ(tier_->torn, 0);
}

}  // namespace
}  // namespace tidepool
