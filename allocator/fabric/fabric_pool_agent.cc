// SPDX-License-Identifier: Apache-2.0
// FabricPool: what the agent says, and what it is told.
#include <algorithm>
#include <utility>

#include "allocator/fabric/fabric_pool.h"
#include "runtime/base/log.h"

namespace tidepool {
namespace {

using agent_wire::NoticeKind;

constexpr uint64_t kAskTag = 1;
constexpr uint64_t kReclaimTag = 2;
constexpr uint64_t kReturnTag = 3;
constexpr Nanoseconds kSecond(1'000'000'000);
constexpr Nanoseconds kReportEvery(500'000'000);
// A region that is no larger than this part of what is wanted is not asked for: there would be too
// many.
constexpr uint64_t kLeastPart = 16;

}  // namespace

FabricRegion* FabricPool::find(uint64_t id) {
  for (const auto& region : regions_) {
    if (region->id == id) return region.get();
  }
  return nullptr;
}

void FabricPool::reconnect(Nanoseconds now) {
  if (now < connect_after_) return;
  connect_after_ = now + kSecond;
  forked_.set(-1);
  if (!client_->reconnect()) return;
  forked_.set(client_->fd());
  reclaiming_ = 0;
  // Each region, before anything else: those that nobody claims are given to others when this
  // process ends, and not before.
  bool all = true;
  for (const auto& region : regions_) {
    region->told = false;
    if (region->gone) continue;
    const bool asked = client_->reclaim(kReclaimTag, region->id, region->epoch).has_value();
    reclaiming_ += asked ? 1 : 0;
    all = all && asked;
  }
  unclaimed_ = !all;
  if (all) (void)client_->reclaimedAll();
}

void FabricPool::leaseEnded() {
  if (hold_.suspended() || !lease_.over()) return;
  hold_.suspend();
  said_over_.store(true, std::memory_order_relaxed);
  logLine(
      "the lease of this host is over (its agent or the fabric manager is away): calls on tables "
      "with rows in regions that are used in place wait");
}

Bytes FabricPool::directBytes() const {
  Bytes bytes;
  for (const auto& region : regions_) {
    for (const FabricRegion::Part& part : region->parts) {
      if (part.direct) bytes += part.direct->used();
    }
  }
  return bytes;
}

void FabricPool::resume() {
  if (!hold_.suspended() || !client_->connected() || reclaiming_ > 0 || unclaimed_ ||
      lease_.over()) {
    return;
  }
  hold_.resume();
  if (!said_over_.exchange(false, std::memory_order_relaxed)) return;
  logLine("the lease of this host is renewed: tables in the fabric go on");
}

void FabricPool::listen(Nanoseconds now) {
  AgentNotice notice;
  for (;;) {
    const auto heard = client_->next(&notice);
    if (!heard) {
      if (!std::exchange(said_away_, true)) {
        logLine("%s: tables in the fabric stay usable, but none is added", heard.error().text());
      }
      forked_.set(-1);
      reclaiming_ = 0;
      connect_after_ = now + kSecond;
      if (ask_ != Ask::kNone) refuseAsk(heard.error());
      return;
    }
    if (!*heard) return;
    hear(notice);
  }
}

void FabricPool::hear(const AgentNotice& notice) {
  FabricRegion* const region = notice.region == 0 ? nullptr : find(notice.region);
  switch (notice.kind) {
    case NoticeKind::kWelcome:
      said_away_ = false;
      return;
    case NoticeKind::kRegion:
      return take(notice);
    case NoticeKind::kKept:
      if (reclaiming_ > 0) --reclaiming_;
      return resume();
    case NoticeKind::kReturned:
      if (region != nullptr && region->returning) {
        regions_.remove_if([region](const auto& one) { return one.get() == region; });
      }
      return;
    case NoticeKind::kRefused:
      return refused(notice);
    case NoticeKind::kDrain:
      if (region == nullptr || region->returning) return;
      region->leaving = true;
      region->stuck_since = Nanoseconds();
      region->stuck_said = false;
      region->waits = agent_wire::Waits::kNot;
      drain_asks_after_ = Nanoseconds();
      return;
    case NoticeKind::kResume:
      if (region != nullptr) region->leaving = false;
      return;
    case NoticeKind::kGone:
      if (region != nullptr) lose(*region, notice.size, notice.text);
      return;
    case NoticeKind::kLease:
      lease_.renew(notice.until, directBytes());
      return resume();
    case NoticeKind::kStatus:
      return;
  }
}

void FabricPool::refused(const AgentNotice& notice) {
  if (notice.tag == kAskTag && ask_ == Ask::kSent) {
    // Perhaps it has so much, but not in one region.
    if (notice.error == ErrorCode::kNoSpace && asked_ > Bytes(kGranuleSize) &&
        asked_ * kLeastPart > lacking_) {
      const Bytes half(roundUp(asked_.value() / 2, kGranuleSize));
      const Bytes lacking(roundUp(lacking_.value(), kGranuleSize));
      asked_ = asked_ > lacking ? std::max(half, lacking) : half;
      ask_ = Ask::kWanted;
      return;
    }
    return refuseAsk(Error::make(notice.error, "no memory from the fabric: %.190s", notice.text));
  }
  FabricRegion* const region = find(notice.region);
  if (region == nullptr) return;
  if (notice.tag == kReclaimTag) {
    if (reclaiming_ > 0) --reclaiming_;
    // Otherwise the agent could not write it down: it is ours still.
    const bool ours = notice.error != ErrorCode::kLost && notice.error != ErrorCode::kStaleEpoch &&
                      notice.error != ErrorCode::kNotFound &&
                      notice.error != ErrorCode::kPermission;
    if (!ours) lose(*region, Bytes(), notice.text);
    resume();
  } else if (notice.tag == kReturnTag && region->returning) {
    // The agent had forgotten it.
    regions_.remove_if([region](const auto& one) { return one.get() == region; });
  }
}

void FabricPool::take(const AgentNotice& notice) {
  auto region = FabricRegion::attach(notice, patience_);
  if (!region) {
    (void)client_->giveBack(kReturnTag, notice.region, notice.epoch);
    return refuseAsk(Error::make(region.error().code(), "cannot use region %llu: %s",
                                 static_cast<unsigned long long>(notice.region),
                                 region.error().text()));
  }
  // It has come late, or before any lease: what the agent says next decides.
  if (lease_.over()) hold_.suspend();
  (*region)->putIn(hold_);
  regions_.push_back(std::move(*region));
  if (ask_ == Ask::kSent) endAsk();
}

void FabricPool::lose(FabricRegion& region, Bytes from, const char* why) {
  region.cut = true;
  if (from == Bytes()) region.gone = true;
  region.forsake(from);
  for (FabricRows* rows : rows_) {
    if (rows->loseIn(region, why)) hold_.lose(*rows);
  }
  for (const FabricRegion::Part& part : region.parts) {
    if (part.direct) hold_.lose(*part.direct);
  }
  logLine("region %llu of the fabric is gone (%s): tables with rows there are lost",
          static_cast<unsigned long long>(region.id), why);
}

void FabricPool::sendAsk(Nanoseconds now) {
  if (ask_ == Ask::kSent && now - asked_at_ > patience_.timeout) {
    // It may still come: then it is taken, and goes back if nobody needs it.
    return refuseAsk(Error::make(ErrorCode::kTimedOut, "the host's agent does not answer"));
  }
  if (ask_ != Ask::kWanted) return;
  if (!client_->connected()) {
    return refuseAsk(Error::make(ErrorCode::kUnreachable,
                                 "the host's agent is away (is `fabricmgr agent` running?)"));
  }
  if (reclaiming_ > 0) return;
  asked_at_ = now;
  const Status sent = client_->ask(kAskTag, asked_, want_);
  if (sent) {
    ask_ = Ask::kSent;
  } else if (sent.error().code() != ErrorCode::kNoSpace) {
    refuseAsk(sent.error());
  }
}

void FabricPool::endAsk() {
  ask_ = Ask::kNone;
  changed_.notifyAll();
}

void FabricPool::refuseAsk(const Error& error) {
  if (ask_ == Ask::kNone) return;
  ask_error_ = error;
  if (purpose_ == Purpose::kDrain) drain_asks_after_ = clock_.now() + kSecond;
  endAsk();
}

void FabricPool::giveBackEmpty() {
  // Who asked for a region may be about to use it.
  const bool wanted = making_ || std::any_of(regions_.begin(), regions_.end(), [](const auto& one) {
                        return one->leaving && !one->returning && one->used() > Bytes();
                      });
  for (auto at = regions_.begin(); at != regions_.end();) {
    FabricRegion& region = **at;
    if (!region.returning && region.used() == Bytes() && !(wanted && region.serving())) {
      region.takeOut(hold_);
      region.parts.clear();  // nothing is mapped or connected any more
      region.returning = true;
    }
    if (region.returning && region.gone) {
      at = regions_.erase(at);
      continue;
    }
    if (region.returning && !region.told && client_->connected() && reclaiming_ == 0) {
      region.told = client_->giveBack(kReturnTag, region.id, region.epoch).has_value();
    }
    ++at;
  }
}

void FabricPool::reportLeft(FabricRegion& region, Nanoseconds now) {
  if (region.gone || region.returning || !client_->connected() ||
      now < region.reported_at + kReportEvery) {
    return;
  }
  region.reported_at = now;
  Bytes left;
  for (const FabricRows* rows : rows_) left += rows->bytesIn(region);
  (void)client_->reportLeft(region.id, region.epoch, left, region.waits);
}

}  // namespace tidepool
