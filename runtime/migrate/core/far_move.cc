// SPDX-License-Identifier: Apache-2.0
// See the header for the idea.
#include "runtime/migrate/core/far_move.h"

#include <algorithm>

namespace tidepool {

bool fetchTierTakesPages(const Core& core) {
  for (uint8_t number = 1; number <= core.tiers.count(); ++number) {
    const FetchTier* const tier = core.tiers.fetch(number);
    if (tier != nullptr && !tier->closed() && tier->used() < tier->capacity()) return true;
  }
  return false;
}

Result<FarMove> FarMove::create(Core& core, uint64_t most) {
  auto bytes = Mapping::anonymous(Bytes(most * kPageSize));
  if (!bytes) return tl::unexpected(bytes.error());
  return FarMove(core, most, std::move(*bytes));
}

void FarMove::claim(const GranuleLock& granule, PageIndex page) {
  TP_CHECK(!full());
  pages_.push_back(claimFar(core_, granule, {page, PageCount(1)}));
  // Its frame is read along with the others.
  TP_CHECK(!pages_.back().empty() && pages_.back().tier() == pages_[begin_].tier());
}

template <typename FrameOf, typename Act>
Status FarMove::forRuns(uint64_t end, FrameOf frameOf, Act act) {
  for (uint64_t at = begin_; at < end;) {
    const FrameIndex first = frameOf(at);
    uint64_t run = 1;
    while (at + run < end && frameOf(at + run) == first + run) ++run;
    TP_TRY(act(FrameRun{first, PageCount(run)}, bytes_.data() + at * kPageSize));
    at += run;
  }
  return {};
}

Status FarMove::read() {
  return forRuns(
      pages_.size(), [&](uint64_t at) { return pages_[at].frames().first; },
      [&](FrameRun run, std::byte* to) {
        return core_.tiers.tier(pages_[begin_].tier()).read(run, to);
      });
}

bool FarMove::findFrames(uint8_t except) {
  found_ = begin_;
  for (tier_ = 1; tier_ <= core_.tiers.count(); ++tier_) {
    FetchTier* const tier = core_.tiers.fetch(tier_);
    if (tier_ == except || tier == nullptr || tier->closed()) continue;
    while (found_ < pages_.size()) {
      const auto run = tier->allocate(PageCount(pages_.size() - found_));
      if (!run) break;
      TP_CHECK_OP(run->count.value(), <=, pages_.size() - found_);
      for (uint64_t i = 0; i < run->count.value(); ++i) to_[found_++] = run->first + i;
    }
    if (found_ > begin_) return true;
  }
  return false;
}

bool FarMove::forsaken() const {
  const Tier& tier = core_.tiers.tier(tier_);
  return std::any_of(&to_[begin_], &to_[begin_] + (found_ - begin_),
                     [&](FrameIndex frame) { return tier.forsaken(frame); });
}

Status FarMove::write() {
  return forRuns(
      found_, [&](uint64_t at) { return to_[at]; },
      [&](FrameRun run, const std::byte* from) {
        return core_.tiers.tier(tier_).write(run, from);
      });
}

Status FarMove::submit(Channels& channels, uint64_t tag) {
  TP_CHECK(found_ > begin_ && found_ - begin_ <= FetchChannel::kMostScattered);
  const auto channel = channels.to(tier_);
  if (!channel) return tl::unexpected(channel.error());
  TP_TRY((*channel)->submitWriteScattered(tag, std::span(to_).subspan(begin_, found_ - begin_),
                                          bytes_.data() + begin_ * kPageSize));
  // What cannot be sent completes with an error.
  [[maybe_unused]] const Status flushed = (*channel)->flush();
  return {};
}

void FarMove::writeFailed(const char* reason) {
  Tier& tier = core_.tiers.tier(tier_);
  if (!tier.closed()) reportError(core_, "cannot write to far memory %s: %s", tier.name(), reason);
  tier.close();
}

void FarMove::abandon() {
  for (; found_ > begin_; --found_) {
    core_.tiers.tier(tier_).release({to_[found_ - 1], PageCount(1)});
  }
  for (FarClaim& page : left()) {
    if (page.empty()) continue;
    page.abandon(core_, GranuleLock(*core_.space, granuleOf(page.first())));
  }
  pages_.clear();
  begin_ = found_ = 0;
}

}  // namespace tidepool
