// SPDX-License-Identifier: Apache-2.0
// A granule, and a tier that can only be mapped in whole granules: an emulated pool that refuses
// parts as device-DAX does, or, with TIDEPOOL_TEST_DAX=/dev/daxN.M, that device.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "runtime/migrate/direct/access_watch.h"
#include "runtime/os/memory.h"
#include "tests/migrate/direct_core.h"

namespace tidepool {

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
  PageCount mapUnit() const override {
    if (when_asked) when_asked();
    return PageCount(kPagesPerGranule);
  }
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

  std::function<void()> when_asked;
  bool refuse = false;
  int maps = 0, torn = 0;

 private:
  std::unique_ptr<DirectFileTier> inner_;
};

class WholeGranulesTest : public DirectCoreTest {
 protected:
  void SetUp() override {
    const char* const device = getenv("TIDEPOOL_TEST_DAX");
    auto tier = device != nullptr ? DirectFileTier::openDax(device, Bytes(8 * kMiB))
                                  : DirectFileTier::createEmulated(Bytes(8 * kMiB));
    ASSERT_TRUE(tier);
    auto whole = std::make_unique<WholeTier>(std::move(*tier));
    tier_ = whole.get();
    ASSERT_NO_FATAL_FAILURE(build(std::move(whole), PageCount(1024)));
    start_ = allocate(1);
    ASSERT_NE(start_, 0u);
    granule_ = granuleOf(core_.space->pageAt(start_));
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
    change(index, core_.space->word(index), PageWord(PageState::kLocal, 0, 0, 0));
    core_.budget.charge(PageCount(1));
  }
  bool placeFar() { return DirectCoreTest::placeFar(granule_); }

  bool promoteWhole() {
    const GranuleLock granule(*core_.space, granule_);
    return mover_->whole.promote(granule);
  }

  /// Repeats `act` while threads store, load, and read by system calls; none may see a wrong byte,
  /// and no store may be lost.
  template <typename Act>
  void underUse(Act act) {
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
    for (int turn = 0; turn < turns && !HasFatalFailure(); ++turn) act();
    stop = true;
    writer.join();
    reader.join();
    caller.join();
    EXPECT_EQ(wrong, 0u);
    for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
      ASSERT_EQ(words[page * kWordsPerPage + 1].load(), stored[page]) << page;
    }
  }

  /// Nothing goes to the first tier any more, and what lies there is to leave it.
  bool vacate() {
    tier_->close();
    const GranuleLock granule(*core_.space, granule_);
    return mover_->changes.vacate(granule, 1);
  }
  WholeTier* addWhole() {
    auto tier = DirectFileTier::createEmulated(Bytes(8 * kMiB));
    EXPECT_TRUE(tier);
    auto whole = std::make_unique<WholeTier>(std::move(*tier));
    WholeTier* const added = whole.get();
    core_.tiers.add(std::move(whole));
    return added;
  }
  /// One that takes single pages.
  DirectTier* addPlain() {
    auto tier = DirectFileTier::createEmulated(Bytes(8 * kMiB));
    EXPECT_TRUE(tier);
    DirectTier* const added = tier->get();
    core_.tiers.add(std::move(*tier));
    return added;
  }

  WholeTier* tier_ = nullptr;
  uintptr_t start_ = 0;
  GranuleIndex granule_;
};

}  // namespace tidepool
