// SPDX-License-Identifier: Apache-2.0
// The far tiers of a process, by the number that page words carry (1..; 0 stands for local DRAM).
// Tiers may come and go while others read the set: a number that a page word names is there for as
// long as the reader holds the granule's lock. Who changes the set is one thread at a time: first
// the one that builds the runtime, then the migrator's.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/mutex.h"
#include "runtime/stats/stats_page.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class TierSet {
 public:
  static constexpr uint8_t kMost = kMaxTiers - 1;

  /// Its number, which was free. The set must not be full().
  uint8_t add(std::unique_ptr<Tier> tier) {
    const uint8_t number = freeNumber();
    TP_CHECK_OP(number, <=, kMost);
    Entry& entry = entries_[number - 1];
    entry.taken = true;
    entry.direct.store(tier->direct(), std::memory_order_release);
    entry.fetch.store(tier->fetch(), std::memory_order_release);
    entry.tier.store(tier.get(), std::memory_order_release);
    direct_count_ += tier->direct() != nullptr ? 1 : 0;
    fetch_count_ += tier->fetch() != nullptr ? 1 : 0;
    entry.owned = std::move(tier);
    if (number > count()) count_.store(number, std::memory_order_release);
    return number;
  }
  bool full() const { return freeNumber() > kMost; }
  /// Takes a tier out. No page word names it any more; but other threads may have found it before:
  /// they have to let go of it before it may be destroyed.
  std::unique_ptr<Tier> remove(uint8_t number) {
    MutexLock lock(listing_);
    Entry& entry = entries_[number - 1];
    direct_count_ -= entry.direct.load(kOwn) != nullptr ? 1 : 0;
    fetch_count_ -= entry.fetch.load(kOwn) != nullptr ? 1 : 0;
    // Release, here and in add(): pairs with the acquire of who looks.
    entry.tier.store(nullptr, std::memory_order_release);
    entry.direct.store(nullptr, std::memory_order_release);
    entry.fetch.store(nullptr, std::memory_order_release);
    return std::move(entry.owned);
  }
  /// The number of what was removed may be given out again.
  void free(uint8_t number) { entries_[number - 1].taken = false; }

  /// No tier has a higher number.
  uint8_t count() const { return count_.load(std::memory_order_acquire); }
  /// Null if no tier has the number (now).
  Tier* find(uint8_t number) const { return entries_[number - 1].tier.load(kLook); }
  /// Of a tier that is there.
  Tier& tier(uint8_t number) const { return *find(number); }
  /// Null if the tier is of the other kind, or not there.
  DirectTier* direct(uint8_t number) const { return entries_[number - 1].direct.load(kLook); }
  FetchTier* fetch(uint8_t number) const { return entries_[number - 1].fetch.load(kLook); }
  /// Calls `act(number, tier)` for every tier.
  template <typename Act>
  void forEach(Act act) const {
    for (uint8_t number = 1; number <= count(); ++number) {
      if (Tier* tier = find(number)) act(number, *tier);
    }
  }
  bool hasDirect() const { return direct_count_.load(std::memory_order_relaxed) > 0; }
  bool hasFetch() const { return fetch_count_.load(std::memory_order_relaxed) > 0; }

  /// Tiers of either kind may come later.
  void expectMore() { more_may_come_ = true; }
  bool moreMayCome() const { return more_may_come_; }
  bool mayHaveDirect() const { return more_may_come_ || hasDirect(); }
  bool mayHaveFetch() const { return more_may_come_ || hasFetch(); }

  /// Held by who lists the tiers without a granule's lock, and is no service thread.
  Mutex& listing() TP_RETURNS(listing_) { return listing_; }
  /// In a child of fork(): nobody of its threads holds it.
  void forgetThreads() TP_LOCKS_INHERITED { new (&listing_) Mutex; }

 private:
  static constexpr std::memory_order kLook = std::memory_order_acquire;
  static constexpr std::memory_order kOwn = std::memory_order_relaxed;
  struct Entry {
    std::atomic<Tier*> tier{nullptr};
    std::atomic<DirectTier*> direct{nullptr};
    std::atomic<FetchTier*> fetch{nullptr};
    std::unique_ptr<Tier> owned;
    bool taken = false;
  };

  uint8_t freeNumber() const {
    uint8_t number = 1;
    while (number <= kMost && entries_[number - 1].taken) ++number;
    return number;
  }

  std::array<Entry, kMost> entries_;
  std::atomic<uint8_t> count_{0};
  std::atomic<int> direct_count_{0}, fetch_count_{0};
  bool more_may_come_ = false;
  Mutex listing_;
};

}  // namespace tidepool
