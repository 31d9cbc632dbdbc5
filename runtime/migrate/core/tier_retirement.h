// SPDX-License-Identifier: Apache-2.0
// How a tier that will be destroyed is taken from the fault service, which may have a channel to
// it, before its number is another tier's.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/base/check.h"

namespace tidepool {

/// A set of tiers, a bit by number, goes through the stages in their order. The owner of the tiers
/// (FabricMemory) begins and ends, the fault service answers each once: two threads, each of which
/// writes one word, and rings the other's doorbell after that.
class TierRetirement {
 public:
  enum class Stage : uint8_t {
    kNone,    // the fault service has nothing to do with a tier of that number
    kAsked,   // begin(): it may have a channel still
    kLetGo,   // it has none, and opens none: the tier can be destroyed
    kEnding,  // end(): it has to see that, too, before another tier has the number
  };
  /// Of tiers that began together.
  Stage stage(uint32_t tiers) const {
    const bool retiring = (retiring_.load(std::memory_order_relaxed) & tiers) != 0;
    // Acquire pairs with the release in answer(): what that thread did with them was before.
    const uint32_t gone = let_go_.load(std::memory_order_acquire) & tiers;
    if (retiring) return gone == tiers ? Stage::kLetGo : Stage::kAsked;
    return gone != 0 ? Stage::kEnding : Stage::kNone;
  }

  /// The owner's.
  void begin(uint32_t tiers) {
    TP_CHECK(stage(tiers) == Stage::kNone);
    // Release pairs with the acquire in answer(): they were taken off the list before.
    retiring_.fetch_or(tiers, std::memory_order_release);
  }
  void end(uint32_t tiers) {
    TP_CHECK(stage(tiers) == Stage::kLetGo);
    retiring_.fetch_and(~tiers, std::memory_order_release);
  }
  /// In a child of fork(), where neither thread runs.
  void forget() {
    retiring_.store(0, std::memory_order_relaxed);
    let_go_.store(0, std::memory_order_relaxed);
  }

  /// The fault service's: calls `let_go(tiers)` with those that have begun since the last call.
  /// False if nothing has changed since then.
  template <typename LetGo>
  bool answer(LetGo let_go) {
    const uint32_t retiring = retiring_.load(std::memory_order_acquire);
    const uint32_t before = let_go_.load(std::memory_order_relaxed);
    if (retiring == before) return false;
    let_go(retiring & ~before);
    let_go_.store(retiring, std::memory_order_release);
    return true;
  }

 private:
  std::atomic<uint32_t> retiring_{0};  // the owner writes it
  std::atomic<uint32_t> let_go_{0};    // the fault service does
};

}  // namespace tidepool
