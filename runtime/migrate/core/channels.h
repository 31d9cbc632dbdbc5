// SPDX-License-Identifier: Apache-2.0
// One thread's channels to the fetch tiers, by the tier's number. A process that starts opens all
// at once, so that what is wrong is said; a child of fork() opens each when it needs it, since most
// children only call exec. Owned and used by one thread.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "runtime/base/debug_check.h"
#include "runtime/migrate/core/core.h"

namespace tidepool {

class Channels {
 public:
  explicit Channels(const TierSet& tiers) : tiers_(tiers) {}

  Status openAll() {
    Status opened;
    tiers_.forEach([&](uint8_t number, Tier&) {
      if (!opened || tiers_.fetch(number) == nullptr) return;
      if (const auto channel = to(number); !channel) opened = tl::unexpected(channel.error());
    });
    return opened;
  }
  /// Opens it if need be, which allocates, and waits for the peer. What has failed stays so.
  Result<FetchChannel*> to(uint8_t number) {
    TP_CHECK_OP(number, <=, TierSet::kMost);
    auto& channel = open_[number];
    if (channel != nullptr) return channel.get();
    if (failed_[number]) return tl::unexpected(*failed_[number]);
    FetchTier* const tier = tiers_.fetch(number);
    TP_CHECK(tier != nullptr);
    auto opened = tier->openChannel();
    if (!opened) {
      failed_[number] = opened.error();
      return tl::unexpected(opened.error());
    }
    channel = std::move(*opened);
    return channel.get();
  }
  /// Nothing is in flight there.
  void close(uint8_t number) {
    TP_DCHECK(open_[number] == nullptr || open_[number]->inFlight() == 0);
    open_[number].reset();
    failed_[number].reset();
  }
  /// Null if it is not.
  FetchChannel* ifOpen(uint8_t number) const { return open_[number].get(); }
  // Over all tiers; null where no channel is open.
  auto begin() const { return open_.begin(); }
  auto end() const { return open_.end(); }

 private:
  const TierSet& tiers_;
  std::array<std::unique_ptr<FetchChannel>, TierSet::kMost + 1> open_;
  std::array<std::optional<Error>, TierSet::kMost + 1> failed_;
};

}  // namespace tidepool
