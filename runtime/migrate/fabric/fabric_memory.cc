// SPDX-License-Identifier: Apache-2.0
// FabricMemory: what the agent says, when to ask for more, and the way out of a region. A tier is
// destroyed when nobody can be inside it: no page word of this process names it, the fault service
// has closed its channel and come round since it was taken out of the set, and every granule's lock
// has been free once (program threads give frames back under them).
#include "runtime/migrate/fabric/fabric_memory.h"

#include <algorithm>

#include "runtime/base/debug_check.h"
#include "runtime/tier/fabric_tiers.h"

namespace tidepool {
namespace {

using agent_wire::NoticeKind;
using agent_wire::PieceKind;

constexpr uint64_t kAskTag = 1;
constexpr uint64_t kReclaimTag = 2;
constexpr uint64_t kReturnTag = 3;

constexpr Nanoseconds kSecond(1'000'000'000);
constexpr Nanoseconds kHello(2'000'000'000);
// First step; later ones double what there is, so that a program of any size needs few regions.
constexpr Bytes kFirstStep(256 * kMiB);
constexpr Bytes kLeastStep(32 * kMiB);
constexpr Bytes kLeastFree(64 * kMiB);
constexpr Nanoseconds kFirstPause(1'000'000'000);
constexpr Nanoseconds kLongestPause(30'000'000'000);
constexpr Nanoseconds kIdleFor(10'000'000'000);
constexpr Nanoseconds kSlice(2'000'000);
constexpr Nanoseconds kRetryWaiting(500'000);
constexpr Nanoseconds kRetryStuck(50'000'000);
constexpr Nanoseconds kStuckFor(2'000'000'000);
constexpr Nanoseconds kReportEvery(500'000'000);
// Most children of a fork call exec at once, and need no connection of their own.
constexpr Nanoseconds kChildWaits(100'000'000);

}  // namespace

Result<std::unique_ptr<AgentClient>> FabricMemory::connect(const char* path) {
  auto client = AgentClient::connect(path);
  if (!client) return tl::unexpected(client.error());
  AgentNotice welcome;
  TP_TRY((*client)->wait(&welcome, kHello));
  if (welcome.kind == NoticeKind::kRefused) {
    return fail(welcome.error, "the host's agent refuses: %.160s", welcome.text);
  }
  if (welcome.kind != NoticeKind::kWelcome) {
    return fail(ErrorCode::kCorrupt, "the host's agent did not say hello");
  }
  return client;
}

Nanoseconds FabricMemory::tend(Nanoseconds now, bool heard) {
  if (!client_->connected()) reconnect(now);
  if (heard && client_->connected()) listen(now);
  // Regions are left alone until it is known whose they are; the agent has no others meanwhile.
  if (lease_.suspended()) {
    if (core_.room.growing()) setGrowing(false);  // nobody is to wait for more
    return kRetryStuck;
  }
  moving_ = waiting_ = false;
  for (Region& region : regions_) {
    if (region.state == State::kLeaving) moveOff(region, now);
    if (region.state == State::kRetiring) finishRetiring(region);
    if (region.state == State::kReturning) giveBack(region);
  }
  lookForIdle(now);
  grow(now);
  if (moving_) return Nanoseconds();
  return waiting_ ? kRetryWaiting : kRetryStuck;
}

FabricMemory::Region* FabricMemory::find(uint64_t id) {
  for (Region& region : regions_) {
    if (region.state != State::kNone && region.id == id) return &region;
  }
  return nullptr;
}

FabricMemory::Region* FabricMemory::freeEntry() {
  for (Region& region : regions_) {
    if (region.state == State::kNone) return &region;
  }
  return nullptr;
}

void FabricMemory::reconnect(Nanoseconds now) {
  if (now < connect_after_) return;
  connect_after_ = now + kSecond;
  asking_ = false;
  if (!client_->reconnect()) return;
  // Each region, before anything else: those that nobody claims are given to others when this
  // process ends, and not before.
  bool all = true;
  for (Region& region : regions_) {
    region.told = false;
    if (region.state == State::kNone || region.gone) continue;
    const bool asked = client_->reclaim(kReclaimTag, region.id, region.epoch).has_value();
    reclaiming_ += asked ? 1 : 0;
    all = all && asked;
  }
  unclaimed_ = !all;
  if (all) [[maybe_unused]]
    const Status told = client_->reclaimedAll();
  if (reclaiming_ == 0) dropParents();
}

void FabricMemory::listen(Nanoseconds now) {
  AgentNotice notice;
  for (;;) {
    const auto heard = client_->next(&notice);
    if (!heard) {
      // Regions stay usable: their data does not go through the agent.
      if (!std::exchange(said_away_, true)) {
        reportError(core_, "%s: far memory stays usable, but none is added", heard.error().text());
      }
      reclaiming_ = 0;
      connect_after_ = now + kSecond;
      return;
    }
    if (!*heard) return;
    hear(notice, now);
  }
}

void FabricMemory::resume() {
  if (client_->connected() && reclaiming_ == 0 && !unclaimed_) lease_.resume();
}

void FabricMemory::hear(const AgentNotice& notice, Nanoseconds now) {
  Region* const region = notice.region == 0 ? nullptr : find(notice.region);
  switch (notice.kind) {
    case NoticeKind::kWelcome:
      said_away_ = false;
      return;
    case NoticeKind::kRegion:
      return take(notice, now);
    case NoticeKind::kKept:
      if (reclaiming_ > 0 && --reclaiming_ == 0) dropParents();
      return resume();
    case NoticeKind::kLease:
      lease_.renew(notice.until);
      return resume();
    case NoticeKind::kReturned:
      if (region != nullptr && region->state == State::kReturning) *region = Region();
      return;
    case NoticeKind::kRefused:
      return refused(notice, now);
    case NoticeKind::kDrain:
      if (region == nullptr || region->state != State::kServing) return;
      region->drained = true;
      urgent_ = false;
      return leave(*region);
    case NoticeKind::kResume:
      if (region == nullptr || region->state != State::kLeaving || region->cut) return;
      region->state = State::kServing;
      region->drained = false;
      region->busy_at = now;
      return openTiers(*region);
    case NoticeKind::kGone:
      if (region != nullptr) lose(*region, notice.size, notice.text);
      return;
    case NoticeKind::kStatus:
      return;
  }
}

void FabricMemory::refused(const AgentNotice& notice, Nanoseconds now) {
  if (notice.tag == kAskTag) {
    asking_ = false;
    if (notice.error == ErrorCode::kNoSpace && asked_ > kLeastStep) {
      most_at_once_ = Bytes(roundUp(asked_.value() / 2, kGranuleSize));
      return;
    }
    // What the program needs now it gets beyond its budget; it is told why, once. What was asked
    // for in good time may come in good time, too.
    if (!vacating() && sums().urgent() && !std::exchange(said_refused_, true)) {
      reportError(core_, "no more far memory from the fabric: %s", notice.text);
    }
    return pause(now);
  }
  Region* const region = find(notice.region);
  if (region == nullptr) return;
  if (notice.tag == kReclaimTag) {
    // Otherwise the agent could not write it down: it is ours still, but others' connections may be
    // all that keeps it, so that these stay and nothing new begins.
    const bool ours = notice.error != ErrorCode::kLost && notice.error != ErrorCode::kStaleEpoch &&
                      notice.error != ErrorCode::kNotFound &&
                      notice.error != ErrorCode::kPermission;
    if (ours) return reportError(core_, "%s", notice.text);
    if (reclaiming_ > 0 && --reclaiming_ == 0) dropParents();
    lose(*region, Bytes(), notice.text);
    resume();
  } else if (notice.tag == kReturnTag && region->state == State::kReturning) {
    *region = Region();  // the agent had forgotten it
  }
}

void FabricMemory::pause(Nanoseconds now) {
  pause_ = pause_ == Nanoseconds() ? kFirstPause : std::min(pause_ * 2, kLongestPause);
  ask_after_ = now + pause_;
  most_at_once_ = Bytes();
  setGrowing(false);
}

void FabricMemory::take(const AgentNotice& notice, Nanoseconds now) {
  asking_ = false;
  Region* const region = freeEntry();
  if (region == nullptr) {
    [[maybe_unused]] const Status returned =
        client_->giveBack(kReturnTag, notice.region, notice.epoch);
    return pause(now);
  }
  region->id = notice.region;
  region->epoch = notice.epoch;
  region->size = notice.size;
  region->busy_at = now;
  const Status attached = attach(notice, *region);
  if (!attached) {
    reportError(core_, "cannot use region %llu: %s", static_cast<unsigned long long>(region->id),
                attached.error().text());
    region->drained = true;
    leave(*region);
    return pause(now);
  }
  region->state = State::kServing;
  pause_ = Nanoseconds();
  said_refused_ = false;
  describeFarTiers(core_);
  evictor_->spaceCame();
  core_.freed_memory.ring();
}

Status FabricMemory::attach(const AgentNotice& notice, Region& region) {
  // A region may be of both classes. Its tiers are in the order of its bytes, which is that in
  // which it is made smaller, from the end on.
  for (size_t at = 0; at < notice.pieces.size();) {
    if (core_.tiers.full()) return fail(ErrorCode::kNoSpace, "there are too many tiers");
    size_t end = at + 1;
    if (notice.pieces[at].kind == PieceKind::kFile) {
      while (end < notice.pieces.size() && notice.pieces[end].kind == PieceKind::kFile) ++end;
      auto tier = tierOverFiles(notice.pieces.subspan(at, end - at), notice.files, region.id);
      if (!tier) return tl::unexpected(tier.error());
      region.numbers[region.tiers++] = lease_.add(std::move(*tier));
    } else {
      auto tier =
          tierOverServer(notice.pieces[at], region.id, region.epoch, core_.options.patience());
      if (!tier) return tl::unexpected(tier.error());
      region.numbers[region.tiers++] = lease_.add(std::move(*tier));
    }
    // This thread answers for the process, as for the tiers that were there from the start.
    core_.tiers.tier(region.numbers[region.tiers - 1]).table().settle();
    at = end;
  }
  return {};
}

FabricMemory::Sums FabricMemory::sums() const {
  Sums sums;
  for (const Region& region : regions_) {
    if (region.state == State::kLeaving) sums.leaving += usedHere(region);
    if (region.state != State::kServing) continue;
    for (uint8_t i = 0; i < region.tiers; ++i) {
      const Tier& tier = core_.tiers.tier(region.numbers[i]);
      sums.capacity += tier.capacity();
      if (!tier.closed()) sums.free += tier.capacity() - std::min(tier.capacity(), tier.used());
    }
  }
  return sums;
}

Bytes FabricMemory::usedHere(const Region& region) const {
  Bytes used;
  for (uint8_t i = 0; i < region.tiers; ++i) {
    Tier* const tier = core_.tiers.find(region.numbers[i]);
    if (tier == nullptr) continue;
    const uint64_t unit = tier->kind() == TierKind::kDirect ? kGranuleSize : kPageSize;
    used += Bytes(tier->table().heldHere().value() * unit);
  }
  return used;
}

bool FabricMemory::needed(const Sums& sums) const {
  const Bytes wanted = std::max(kLeastFree, sums.capacity / 8) + sums.leaving;
  if (sums.capacity > Bytes()) return sums.free < wanted;
  if (sums.leaving > Bytes() || core_.room.faultsWait()) return true;
  // Early enough that nobody has to wait for it.
  return core_.options.dram > Bytes() && core_.budget.held() * 2 > core_.budget.limit();
}

void FabricMemory::setGrowing(bool growing) {
  room_.setGrowing(growing);
  // Those that wait for it must look again.
  if (!growing) core_.freed_memory.ring();
}

void FabricMemory::grow(Nanoseconds now) {
  const Sums have = sums();
  const Bytes left =
      most_ == Bytes() ? Bytes(~uint64_t{0} / 2) : most_ - std::min(most_, have.capacity);
  if (asking_ && now - asked_at_ > core_.options.remote_timeout) {
    // It may still come: then it is taken.
    asking_ = false;
    pause(now);
  }
  // That there was none when it was not needed yet is no reason to wait now.
  const bool due = now >= ask_after_ || (have.urgent() && !urgent_);
  const bool possible = client_->connected() && reclaiming_ == 0 && due && !core_.tiers.full() &&
                        freeEntry() != nullptr && left >= Bytes(kGranuleSize);
  // As long as there is nothing at all, who is short of memory waits for the first region.
  const bool soon =
      vacating() || (possible && (asking_ || have.capacity == Bytes() || needed(have)));
  if (soon != core_.room.growing()) setGrowing(soon);
  if (!possible || asking_ || !needed(have)) return;
  Bytes step = std::max({kFirstStep, have.capacity, have.leaving});
  if (most_at_once_ > Bytes()) step = std::min(step, most_at_once_);
  asked_ = Bytes(roundUp(std::min(step, left).value(), kGranuleSize));
  asked_at_ = now;
  urgent_ = have.urgent();
  asking_ = client_->ask(kAskTag, asked_, agent_wire::Want::kAny).has_value();
}

void FabricMemory::leave(Region& region) {
  TP_CHECK(region.state != State::kRetiring && region.state != State::kReturning);
  region.state = State::kLeaving;
  region.least_left = Bytes(~uint64_t{0});
  region.stuck_since.reset();
  region.stands_still = region.stuck_said = region.lingers = false;
  closeTiers(region);
}

void FabricMemory::closeTiers(Region& region) {
  for (uint8_t i = 0; i < region.tiers; ++i) core_.tiers.tier(region.numbers[i]).close();
  evictor_->spaceWent();
}

void FabricMemory::openTiers(Region& region) {
  for (uint8_t i = 0; i < region.tiers; ++i) core_.tiers.tier(region.numbers[i]).reopen();
  evictor_->spaceCame();
}

bool FabricMemory::vacating() const {
  return std::any_of(regions_.begin(), regions_.end(), [](const Region& region) {
    return region.state == State::kLeaving && !region.lingers && !region.cut;
  });
}

void FabricMemory::noteLeft(Region& region) {
  const Bytes left = usedHere(region);
  if (left >= region.least_left) return;
  region.least_left = left;
  noteMoves(region);
}

void FabricMemory::noteMoves(Region& region) {
  region.stuck_since.reset();
  region.stands_still = false;
}

/// A whole turn has moved nothing. Only then is it said to stand still, whatever goes to and fro:
/// on a slow device one granule may take as long as that, and what came back meanwhile longer.
void FabricMemory::noteStuck(Region& region, Nanoseconds now) {
  if (!region.stuck_since) region.stuck_since = now;
  region.stands_still = now - *region.stuck_since >= kStuckFor;
}

void FabricMemory::moveOff(Region& region, Nanoseconds now) {
  // Whether there is room elsewhere is known when what was asked for has come, or will not.
  if (asking_) noteMoves(region);
  noteLeft(region);
  if (region.lingers) {
    if (asking_ || now < region.lingers_until) return reportLeft(region, now);
    region.lingers = false;
    closeTiers(region);
  }
  bool done = true;
  bool stuck = false;
  endWatch();
  for (uint8_t i = 0; i < region.tiers; ++i) {
    const auto progress = evacuator_.moveOff(region.numbers[i], kSlice);
    done = done && progress == Evacuator::Progress::kDone;
    stuck = stuck || progress == Evacuator::Progress::kStuck;
    moving_ = moving_ || progress == Evacuator::Progress::kMoved;
    waiting_ = waiting_ || progress == Evacuator::Progress::kWaits;
  }
  // Limbo is written already: what it holds goes where its frames are.
  while (!done && evictor_->recycle()) {
  }
  if (done) return retire(region);
  noteLeft(region);
  if (stuck && !asking_) noteStuck(region, now);
  reportLeft(region, now);
  if (region.stands_still) sayStuck(region);
  if (stuck && !region.cut && !asking_) linger(region, now);
}

void FabricMemory::linger(Region& region, Nanoseconds now) {
  region.lingers = true;
  region.lingers_until = now + kSecond;
  openTiers(region);
}

void FabricMemory::sayStuck(Region& region) {
  if (!region.drained || std::exchange(region.stuck_said, true)) return;
  reportError(
      core_,
      "region %llu is to be left, but the rest of it cannot: there is no room elsewhere, or "
      "devices may hold its pages (a GPU's, io_uring, O_DIRECT); assign more to this host, or "
      "raise "
      "--dram",
      static_cast<unsigned long long>(region.id));
}

void FabricMemory::reportLeft(Region& region, Nanoseconds now) {
  if (!region.drained || region.gone || !client_->connected() || now < region.reported_at) return;
  region.reported_at = now + kReportEvery;
  using agent_wire::Waits;
  [[maybe_unused]] const Status told =
      client_->reportLeft(region.id, region.epoch, usedHere(region),
                          region.stands_still ? Waits::kRoomOrDevice : Waits::kNot);
}

void FabricMemory::retire(Region& region) {
  TP_CHECK(region.state == State::kLeaving);
  region.state = State::kRetiring;
  lease_.forget(bitsOf(region));
  if (balancer_ != nullptr) balancer_->letGo();
  for (uint8_t i = 0; i < region.tiers; ++i) {
    const uint8_t number = region.numbers[i];
    // Pages that are there would be gone with it.
    TP_CHECK(core_.tiers.tier(number).holdsNothing());
    evictor_->letGo(number);
    region.retired[i] = core_.tiers.remove(number);
    core_.stats->tiers[number].capacity_bytes = 0;
    core_.stats->tiers[number].used_bytes = 0;
  }
  core_.retirement.begin(bitsOf(region));
  core_.freed_memory.ring();
}

uint32_t FabricMemory::bitsOf(const Region& region) {
  uint32_t bits = 0;
  for (uint8_t i = 0; i < region.tiers; ++i) bits |= uint32_t{1} << region.numbers[i];
  return bits;
}

void FabricMemory::finishRetiring(Region& region) {
  const uint32_t tiers = bitsOf(region);
  const TierRetirement::Stage stage = core_.retirement.stage(tiers);
  if (stage == TierRetirement::Stage::kLetGo) {
    core_.space->awaitHolders();
    for (uint8_t i = 0; i < region.tiers; ++i) {
      region.retired[i]->table().leave();
      region.retired[i].reset();
    }
    core_.retirement.end(tiers);
    core_.freed_memory.ring();
    return;
  }
  if (stage != TierRetirement::Stage::kNone) return;
  for (uint8_t i = 0; i < region.tiers; ++i) {
    TP_CHECK(region.retired[i] == nullptr);
    core_.tiers.free(region.numbers[i]);
  }
  region.tiers = 0;
  region.state = State::kReturning;
}

void FabricMemory::giveBack(Region& region) {
  if (region.gone) {
    region = Region();
    return;
  }
  if (!client_->connected() || reclaiming_ > 0 || region.told) return;
  region.told = client_->giveBack(kReturnTag, region.id, region.epoch).has_value();
}

void FabricMemory::lose(Region& region, Bytes from, const char* why) {
  if (region.state == State::kReturning || region.state == State::kRetiring) {
    region.gone = true;
    return;
  }
  // One that lingers is open, too.
  if (region.state == State::kServing || region.lingers) leave(region);
  endWatch();
  uint64_t lost = 0;
  Bytes start;
  for (uint8_t i = 0; i < region.tiers; ++i) {
    const uint8_t number = region.numbers[i];
    Tier& tier = core_.tiers.tier(number);
    const Bytes left = from > start ? std::min(from - start, tier.capacity()) : Bytes();
    start += tier.capacity();
    if (left == tier.capacity()) continue;
    const FrameIndex first_lost(toPages(left).value());
    tier.forsake(first_lost);
    evictor_->takeBack(number);
    lost += evacuator_.lose(number, first_lost);
  }
  region.cut = true;
  if (from == Bytes()) region.gone = true;
  reportError(core_,
              "region %llu of the fabric is gone (%s): %llu pages are lost; a program that "
              "touches one ends in SIGBUS",
              static_cast<unsigned long long>(region.id), why,
              static_cast<unsigned long long>(lost));
}

void FabricMemory::lookForIdle(Nanoseconds now) {
  if (now < idle_after_) return;
  idle_after_ = now + kSecond;
  // It has frames in regions, also of pages that are nobody's any more.
  evictor_->recycleStale();
  for (Region& region : regions_) {
    if (region.state != State::kServing) continue;
    if (usedHere(region) > Bytes()) region.busy_at = now;
    if (now - region.busy_at < kIdleFor) continue;
    const Sums all = sums();
    // So much must stay free that it is not asked for again at once.
    const Bytes stays = all.free - std::min(all.free, region.size);
    const Bytes rest = all.capacity - std::min(all.capacity, region.size);
    const bool idle = core_.budget.held() * 2 <= core_.budget.limit();
    if (rest == Bytes() ? !idle : stays < std::max(kLeastFree, rest / 8) * 2) continue;
    return leave(region);
  }
}

void FabricMemory::forkedInChild() {
  if (client_->connected()) {
    parents_[1] = std::move(parents_[0]);
    parents_[0] = client_->takeSocket();
  }
  connect_after_ = core_.clock->now() + kChildWaits;
  reclaiming_ = 0;
  unclaimed_ = true;  // by the child, so far
  asking_ = false;
  for (Region& region : regions_) {
    if (region.state != State::kRetiring && region.state != State::kReturning) continue;
    // The child never had anything there.
    for (uint8_t i = 0; i < region.tiers; ++i) {
      if (region.retired[i] != nullptr) region.retired[i]->table().abandonInChild();
      core_.tiers.free(region.numbers[i]);
    }
    region = Region();
  }
  core_.retirement.forget();
}

}  // namespace tidepool
