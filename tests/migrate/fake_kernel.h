// SPDX-License-Identifier: Apache-2.0
// A kernel for unit tests of runtime/migrate, which acts on real memory but never blocks: it keeps
// itself which pages are present and which are armed. It fails the calls that a test names, and
// calls the test before each, which may then act as another thread. Thread-safe, but for its knobs.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/os/fault_port.h"
#include "runtime/os/kernel.h"
#include "runtime/os/numa.h"

namespace tidepool {

class ManualClock final : public Clock {
 public:
  Nanoseconds now() const override { return Nanoseconds(now_.load()); }
  void advance(Nanoseconds time) { now_ += time.value(); }

 private:
  std::atomic<uint64_t> now_{1'000'000'000};
};

/// The calls that a test can hear of and fail: those of Kernel, then those of FaultPort.
enum class Call : uint8_t {
  kMapFresh,
  kMapNothing,
  kMapUnused,
  kMoveMapping,
  kProtect,
  kDiscard,
  kDiscardUnlocked,
  kUnshare,
  kKeepFromDumps,
  kDumpAgain,
  kScan,
  kReadPages,
  kNodesOf,
  kMovePages,
  kWait,
  kAnonymousMemory,
  kArm,
  kDisarm,
  kCopy,
  kMove,
  kPoison,
  kWake,
  kWriteProtect,
  kRead,
};

class FakeKernel final : public Kernel {
 public:
  /// Called before each call and without a lock: it may call anything, and fail calls.
  std::function<void(Call, uintptr_t address, Bytes size)> before;
  // What the kernel says.
  Bytes anonymous;
  os::LeftBehind left;
  bool may_pin = false;
  // What it can.
  bool can_move = true;
  bool tracks_writes = true;
  bool can_poison = true;
  /// Whether wait() sleeps until a descriptor is ready: time is the test's. Else it only looks.
  bool sleeps = false;

  /// The n-th such call from now on (1: the next) fails, after it has done so many pages. `outcome`
  /// is for copies and moves; calls that say no more than that they failed do so.
  void fail(Call call, uint64_t nth = 1, PortOutcome outcome = PortOutcome::kBusy,
            PageCount done = PageCount()) {
    const std::lock_guard lock(mutex_);
    planned_.push_back({call, nth, outcome, done});
  }
  uint64_t calls(Call call) const {
    const std::lock_guard lock(mutex_);
    return calls_[static_cast<size_t>(call)];
  }
  /// Of the last wait().
  std::vector<pollfd> waitedFor() const {
    const std::lock_guard lock(mutex_);
    return waited_for_;
  }
  std::optional<Nanoseconds> waitedUpTo() const {
    const std::lock_guard lock(mutex_);
    return timeout_;
  }

  /// How often anybody was to be woken, by a call of its own or along with a copy.
  uint64_t wakes() const {
    const std::lock_guard lock(mutex_);
    return wakes_;
  }

  // What a thread of the program does. A touch of an absent page waits for wake().

  /// True if the page is there; else the fault is reported, and somebody waits for it.
  bool touch(uintptr_t address, int thread = 0) {
    const std::lock_guard lock(mutex_);
    const uintptr_t page = roundDown(address, kPageSize);
    if (pages_[page].present) return true;
    ++waiting_[page];
    faults_.push_back({page, thread, true});
    const uint64_t one = 1;
    EXPECT_EQ(::write(bell_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    return false;
  }
  /// A writer meets a page that is there and closed to it.
  void meetClosed(uintptr_t address) {
    const std::lock_guard lock(mutex_);
    ++waiting_[roundDown(address, kPageSize)];
    faults_.push_back({roundDown(address, kPageSize), 0, true, true});
  }
  bool waits(uintptr_t address) const {
    const std::lock_guard lock(mutex_);
    return waiting_.contains(roundDown(address, kPageSize));
  }
  /// Writes a present page.
  void store(uintptr_t address, uint64_t value) {
    const std::lock_guard lock(mutex_);
    Page& page = pages_[roundDown(address, kPageSize)];
    ASSERT_TRUE(page.present);
    ASSERT_TRUE(tracks_writes || !page.armed) << "the writer would wait";
    page.armed = false;
    memcpy(reinterpret_cast<void*>(address), &value, sizeof value);
  }
  uint64_t load(uintptr_t address) const {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(isPresent(address));
    uint64_t value;
    memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
    return value;
  }
  bool present(uintptr_t address) const {
    const std::lock_guard lock(mutex_);
    return isPresent(address);
  }
  bool armed(uintptr_t address) const { return flag(address, &Page::armed); }
  bool poisoned(uintptr_t address) const { return flag(address, &Page::poisoned); }

  Status mapFresh(uintptr_t address, Bytes size) override {
    if (failsNow(Call::kMapFresh, address, size)) return failed();
    forget(address, size, Page{});
    return os::mapFresh(address, size);
  }
  Status mapNothing(uintptr_t address, Bytes size) override {
    if (failsNow(Call::kMapNothing, address, size)) return failed();
    forget(address, size, kUnmapped);
    return os::mapNothing(address, size);
  }
  Status mapUnused(uintptr_t address, Bytes size) override {
    if (failsNow(Call::kMapUnused, address, size)) return failed();
    forget(address, size, kUnmapped);
    return os::mapUnused(address, size);
  }
  Status moveMapping(uintptr_t from, uintptr_t to, Bytes size) override {
    if (failsNow(Call::kMoveMapping, to, size)) return failed();
    forget(from, size, Page{});
    forget(to, size, Page{.present = true});
    return os::moveMapping(from, to, size);
  }
  void zapShared(uintptr_t address, Bytes size) override { os::zapShared(address, size); }
  /// The rights themselves are not kept.
  Status protect(uintptr_t address, Bytes size, int) override {
    return failsNow(Call::kProtect, address, size) ? failed() : Status();
  }
  Status discard(uintptr_t address, Bytes size) override {
    if (failsNow(Call::kDiscard, address, size)) return failed();
    forget(address, size, Page{});
    return os::discard(address, size);
  }
  Bytes discardUnlocked(uintptr_t address, Bytes size) override {
    if (const auto plan = failsNow(Call::kDiscardUnlocked, address, size)) {
      size = toBytes(plan->done);
    }
    if (size == Bytes()) return size;
    forget(address, size, Page{});
    return os::discardUnlocked(address, size);
  }
  bool unshare(uintptr_t address, Bytes size) override {
    return !failsNow(Call::kUnshare, address, size);
  }
  void keepFromChildren(uintptr_t, Bytes) override {}
  Status keepFromDumps(uintptr_t address, Bytes size) override {
    return failsNow(Call::kKeepFromDumps, address, size) ? failed() : Status();
  }
  Status dumpAgain(uintptr_t address, Bytes size) override {
    return failsNow(Call::kDumpAgain, address, size) ? failed() : Status();
  }
  void leaveOutOfDumps(uintptr_t, Bytes) override {}
  void includeInDumps(uintptr_t, Bytes) override {}
  Bytes anonymousMemory(int) override {
    failsNow(Call::kAnonymousMemory, 0, Bytes());
    return anonymous;
  }
  os::LeftBehind leftBehind(int) override { return left; }
  uint32_t ownShareOfAnonymous() override { return 1024; }
  bool mayPinPages() override { return may_pin; }
  Status nodesOf(std::span<void* const> pages, std::span<int> nodes) override {
    return failsNow(Call::kNodesOf, 0, Bytes()) ? failed() : os::nodesOf(pages, nodes);
  }
  Status movePages(std::span<void* const> pages, uint32_t node, std::span<int> nodes) override {
    if (failsNow(Call::kMovePages, 0, toBytes(PageCount(pages.size())))) return failed();
    return os::movePages(pages, node, nodes);
  }

  Result<size_t> scan(Scan what, int, uintptr_t address, Bytes size, std::span<os::PageRun> out,
                      uintptr_t* walked) override {
    if (failsNow(Call::kScan, address, size)) {
      return tidepool::fail(ErrorCode::kUnsupported, "the test says so");
    }
    const std::lock_guard lock(mutex_);
    size_t runs = 0;
    const uintptr_t end = address + size.value();
    for (*walked = address; *walked < end; *walked += kPageSize) {
      const auto page = pages_.find(*walked);
      if (page == pages_.end() || !page->second.present) continue;
      if (what == Scan::kWritten && page->second.armed) continue;
      if (runs > 0 && out[runs - 1].end == *walked) {
        out[runs - 1].end += kPageSize;
      } else if (runs == out.size()) {
        return runs;
      } else {
        out[runs++] = {*walked, *walked + kPageSize};
      }
    }
    return runs;
  }
  using Kernel::readPages;
  PageCount readPages(std::byte* to, std::span<const os::PageRun> runs) override {
    std::vector<uintptr_t> pages;
    for (const os::PageRun& run : runs) {
      for (uintptr_t page = run.start; page < run.end; page += kPageSize) pages.push_back(page);
    }
    if (const auto plan = failsNow(Call::kReadPages, pages[0], toBytes(PageCount(pages.size())))) {
      pages.resize(plan->done.value());
    }
    const std::lock_guard lock(mutex_);
    uint64_t done = 0;
    for (; done < pages.size() && isPresent(pages[done]); ++done) {
      memcpy(to + done * kPageSize, reinterpret_cast<const void*>(pages[done]), kPageSize);
    }
    // Where they go is memory that the kernel writes, so it is there from now on.
    for (uint64_t i = 0; i < done; ++i) {
      const auto page = pages_.find(reinterpret_cast<uintptr_t>(to) + i * kPageSize);
      if (page != pages_.end()) page->second.present = true;
    }
    return PageCount(done);
  }
  void wait(std::span<pollfd> waits, std::optional<Nanoseconds> timeout) override {
    {
      const std::lock_guard lock(mutex_);
      waited_for_.assign(waits.begin(), waits.end());
      timeout_ = timeout;
    }
    failsNow(Call::kWait, 0, Bytes());
    const bool at_once = !sleeps || timeout == Nanoseconds();
    realKernel().wait(waits, at_once ? std::optional(Nanoseconds()) : std::nullopt);
  }

 private:
  friend class FakePort;
  struct Page {
    bool present = false;
    bool armed = false;
    bool poisoned = false;
    bool mapped = true;
  };
  static constexpr Page kUnmapped{false, false, false, false};
  struct Plan {
    Call call;
    uint64_t nth;
    PortOutcome outcome;
    PageCount done;
  };

  static Status failed() { return tidepool::fail(ErrorCode::kNoMemory, "the test says so"); }
  /// Counts a call, and says how it fails if it is to.
  std::optional<Plan> failsNow(Call call, uintptr_t address, Bytes size) {
    if (before) before(call, address, size);
    const std::lock_guard lock(mutex_);
    ++calls_[static_cast<size_t>(call)];
    std::optional<Plan> now;
    for (Plan& plan : planned_) {
      if (plan.call == call && --plan.nth == 0) now = plan;
    }
    std::erase_if(planned_, [](const Plan& plan) { return plan.nth == 0; });
    return now;
  }
  bool isPresent(uintptr_t address) const {
    const auto page = pages_.find(roundDown(address, kPageSize));
    return page != pages_.end() && page->second.present;
  }
  bool flag(uintptr_t address, bool Page::*which) const {
    const std::lock_guard lock(mutex_);
    const auto page = pages_.find(roundDown(address, kPageSize));
    return page != pages_.end() && page->second.*which;
  }
  void forget(uintptr_t address, Bytes size, Page as) {
    const std::lock_guard lock(mutex_);
    for (uint64_t at = 0; at < size.value(); at += kPageSize) pages_[address + at] = as;
  }
  void wakeAll(uintptr_t address, Bytes size) {
    ++wakes_;
    waiting_.erase(waiting_.lower_bound(address), waiting_.lower_bound(address + size.value()));
  }

  mutable std::mutex mutex_;
  std::map<uintptr_t, Page> pages_;
  std::map<uintptr_t, int> waiting_;
  std::vector<MissingFault> faults_;
  std::vector<Plan> planned_;
  uint64_t wakes_ = 0;
  std::array<uint64_t, 32> calls_{};
  std::vector<pollfd> waited_for_;
  std::optional<Nanoseconds> timeout_;
  UniqueFd bell_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

/// The port to it; the kernel outlives it.
class FakePort final : public FaultPort {
 public:
  explicit FakePort(FakeKernel& kernel) : kernel_(kernel) {}

  Result<std::unique_ptr<FaultPort>> reopen() const override {
    return std::unique_ptr<FaultPort>(std::make_unique<FakePort>(kernel_));
  }
  Status arm(uintptr_t address, Bytes size) override {
    return kernel_.failsNow(Call::kArm, address, size) ? FakeKernel::failed() : Status();
  }
  Status disarm(uintptr_t address, Bytes size) override {
    return kernel_.failsNow(Call::kDisarm, address, size) ? FakeKernel::failed() : Status();
  }
  using FaultPort::copy;
  PortResult copy(uintptr_t to, const std::byte* from, Bytes size, Wake wake, Arm writes) override {
    return each(Call::kCopy, to, size, [&](uint64_t at) {
      FakeKernel::Page& page = kernel_.pages_[to + at];
      if (!page.mapped) return PortOutcome::kInvalid;
      if (page.present) return PortOutcome::kExists;
      memcpy(reinterpret_cast<void*>(to + at), from + at, kPageSize);
      page = {.present = true, .armed = writes == Arm::kYes};
      if (wake == Wake::kYes) kernel_.wakeAll(to + at, Bytes(kPageSize));
      return PortOutcome::kDone;
    });
  }
  PortResult move(uintptr_t to, uintptr_t from, Bytes size, Wake) override {
    return each(Call::kMove, from, size, [&](uint64_t at) {
      FakeKernel::Page& source = kernel_.pages_[from + at];
      FakeKernel::Page& target = kernel_.pages_[to + at];
      if (!source.present) return PortOutcome::kAbsent;
      if (target.present) return PortOutcome::kExists;
      memcpy(reinterpret_cast<void*>(to + at), reinterpret_cast<void*>(from + at), kPageSize);
      EXPECT_TRUE(os::discard(from + at, Bytes(kPageSize)));
      source = {};
      target.present = true;
      return PortOutcome::kDone;
    });
  }
  Status poison(uintptr_t address, Bytes size) override {
    if (kernel_.failsNow(Call::kPoison, address, size)) return FakeKernel::failed();
    kernel_.forget(address, size, {.poisoned = true});
    return {};
  }
  void wake(uintptr_t address, Bytes size) override {
    kernel_.failsNow(Call::kWake, address, size);
    const std::lock_guard lock(kernel_.mutex_);
    kernel_.wakeAll(address, size);
  }
  Status writeProtect(uintptr_t address, Bytes size, Wake unprotect) override {
    if (kernel_.failsNow(Call::kWriteProtect, address, size)) return FakeKernel::failed();
    const std::lock_guard lock(kernel_.mutex_);
    for (uint64_t at = 0; at < size.value(); at += kPageSize) {
      FakeKernel::Page& page = kernel_.pages_[address + at];
      if (page.present) page.armed = unprotect == Wake::kNo;
    }
    return {};
  }
  size_t read(std::span<MissingFault> out) override {
    kernel_.failsNow(Call::kRead, 0, Bytes());
    const std::lock_guard lock(kernel_.mutex_);
    auto& faults = kernel_.faults_;
    const size_t count = std::min(out.size(), faults.size());
    std::copy_n(faults.begin(), count, out.begin());
    faults.erase(faults.begin(), faults.begin() + static_cast<ptrdiff_t>(count));
    uint64_t rung;
    if (faults.empty()) (void)!::read(kernel_.bell_.get(), &rung, sizeof rung);
    return count;
  }
  int fd() const override { return kernel_.bell_.get(); }
  bool canMove() const override { return kernel_.can_move; }
  bool tracksWrites() const override { return kernel_.tracks_writes; }
  bool canPoison() const override { return kernel_.can_poison; }

 private:
  /// Does page by page what has to be done, up to the first that cannot.
  template <typename Act>
  PortResult each(Call call, uintptr_t address, Bytes size, Act act) {
    const auto plan = kernel_.failsNow(call, address, size);
    const uint64_t end = plan ? toBytes(plan->done).value() : size.value();
    const std::lock_guard lock(kernel_.mutex_);
    for (uint64_t at = 0; at < end; at += kPageSize) {
      const PortOutcome outcome = act(at);
      if (outcome != PortOutcome::kDone) return {outcome, Bytes(at)};
    }
    return {plan ? plan->outcome : PortOutcome::kDone, Bytes(end)};
  }

  FakeKernel& kernel_;
};

}  // namespace tidepool
