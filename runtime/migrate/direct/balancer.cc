// SPDX-License-Identifier: Apache-2.0
// Sampling and placement for direct tiers: open a batch of granules, leave them alone for one
// window, close them, move, and begin anew.
#include "runtime/migrate/direct/balancer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "runtime/base/debug_check.h"
#include "runtime/base/numbers.h"
#include "runtime/os/proc_files.h"
#include "runtime/stats/stats_region.h"

namespace tidepool {
namespace {

// What one fault costs the program, measured: on a page of a direct tier that was taken out of the
// page table, and on one armed against writes.
constexpr double kTouchNs = 1'100;
constexpr double kWriteNs = 800;
// Moving one page by itself: barrier, copy, mapping, flush (measured about 20 us, both ways).
constexpr Nanoseconds kMovePage(20'000);
// Moving a granule that is mapped whole, 2 MiB to copy (measured 830 us, and 1,500 us back).
constexpr Nanoseconds kMoveGranule(800'000);
// Share of one core for moving pages, and the most that may be saved up.
constexpr double kMovingShare = 0.25;
constexpr double kMostMovingNs = 100e6;
constexpr double kMostSavedNs = 200e6;
// What a look may cost at worst, every page of the granule used: saved up first, so that the share
// is never exceeded.
constexpr double kLookNs = 0.7e6;
// Saved-up sampling time beyond which even what is dear to look at is looked at.
constexpr double kPlentyNs = 100e6;
constexpr Nanoseconds kIdle(20'000'000);
constexpr Nanoseconds kDisabled(2'000'000'000);
// Where hardly anything has to move, samples are saved up for when something has to.
constexpr double kSettled = 0.1;
constexpr Nanoseconds kSettledEvery(400'000'000);
// Runs of local pages asked of a granule that has many: each costs a system call.
constexpr uint64_t kSampledRuns = 8;
// Memory in use that grows by this share from one look to the next is being filled: what is touched
// then does not tell what will be.
constexpr uint64_t kFillingShare = 256;
// Promotions held by pins (4 MiB) after which it is said: an io_uring for a moment is no matter.
constexpr uint64_t kHeldWorthSaying = 1'024;
constexpr Nanoseconds kJudgeEvery(1'000'000'000);
// Mappings left to the program; half of all, where all are few.
constexpr uint64_t kMapsForProgram = 16'384;

uint64_t maxMapCount() {
  constexpr uint64_t kKernelsDefault = 65530;
  char text[32];
  if (!os::readProc("sys/vm/max_map_count", text, sizeof text)) return kKernelsDefault;
  const uint64_t most = numberAt(text);
  return most == 0 ? kKernelsDefault : most;
}

uint64_t runsIn(const PageSet& set) {
  uint64_t count = 0;
  forRuns(set, [&](uint64_t, uint64_t) { ++count; });
  return count;
}

/// Whether most of the direct pages lie in long runs.
bool cheapToWatch(const PageSet& direct) {
  uint64_t cheap = 0;
  forRuns(direct, [&](uint64_t, uint64_t count) {
    if (count < AccessWatch::kLeastHidden) return;
    cheap += count;
  });
  return cheap * 2 >= direct.count();
}

}  // namespace

Balancer::Balancer(Core& core, GranuleMover& mover, Mapping scores, Mapping runs, LookTimes looks,
                   std::unique_ptr<AccessWatch> watch)
    : core_(core),
      mover_(mover),
      scores_(std::move(scores)),
      runs_(std::move(runs)),
      looks_(std::move(looks)),
      watch_(std::move(watch)),
      rate_(core.options.migration_rate) {}

Result<std::unique_ptr<Balancer>> Balancer::create(Core& core, GranuleMover& mover) {
  auto scores = Mapping::anonymous(Bytes(core.space->pageEnd().value()));
  if (!scores) return tl::unexpected(scores.error());
  auto runs = Mapping::anonymous(Bytes(2 * (granuleOf(core.space->pageEnd()).value() + 1)));
  if (!runs) return tl::unexpected(runs.error());
  auto looks = LookTimes::create(PageCount(core.space->pageEnd().value()));
  if (!looks) return tl::unexpected(looks.error());
  auto watch = AccessWatch::create(core);
  if (!watch) return tl::unexpected(watch.error());
  std::unique_ptr<Balancer> balancer(new Balancer(core, mover, std::move(*scores), std::move(*runs),
                                                  std::move(*looks), std::move(*watch)));
  balancer->source_ = addStatsSource(*core.stats, "unmap");
  TP_CHECK(balancer->source_ != nullptr);
  // Each run of local pages in a direct granule costs two mappings.
  const uint64_t maps = maxMapCount();
  balancer->most_runs_ = (maps - std::min(maps / 2, kMapsForProgram)) / 2;
  return balancer;
}

Nanoseconds Balancer::step(Nanoseconds now) {
  if (!core_.options.sampling || core_.barrier == nullptr || !core_.port->tracksWrites()) {
    return kDisabled;
  }
  earn(now);
  rate_.earn(now, mover_.transfer.moved());
  judgeMoves(now);
  if (watching_) {
    const Nanoseconds due = opened_at_ + window_.length();
    if (now < due) return due - now;
    closeBatch(now);
    act();
    // A thread that has just worked is not woken on time, and a window must not become longer.
    return kIdle;
  }
  // What waits to be moved is better than anything newer.
  if (acted_ < visit_count_) {
    act();
    return kIdle;
  }
  if (settled() && now - opened_at_ < kSettledEvery) return kIdle;
  if (filling()) return kIdle;
  if (sampling_ns_ > static_cast<double>(looksAtOnce()) * kLookNs && moving_ns_ > 0) openBatch(now);
  return watching_ ? window_.length() : kIdle;
}

void Balancer::rest() {
  if (watching_) closeBatch(opened_at_ + window_.length());
}

void Balancer::letGo() {
  rest();
  watch_->forgetMappings();
}

void Balancer::earn(Nanoseconds now) {
  const double elapsed = static_cast<double>((now - earned_at_).value());
  if (earned_at_.value() != 0) {
    sampling_ns_ = std::min(sampling_ns_ + elapsed * core_.options.sampling_cpu, kMostSavedNs);
    moving_ns_ = std::min(moving_ns_ + elapsed * kMovingShare, kMostMovingNs);
  }
  earned_at_ = now;
}

bool Balancer::filling() {
  uint64_t used = core_.budget.held().value();
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    const DirectTier* tier = core_.tiers.direct(number);
    if (tier != nullptr) used += tier->used().value() >> kPageShift;
  }
  const uint64_t before = std::exchange(used_, used);
  return used > before + before / kFillingShare;
}

bool Balancer::settled() const { return unrest_ < kSettled && sampling_ns_ < kPlentyNs; }

size_t Balancer::looksAtOnce() const {
  // While the window is not right, a few granules are enough to see that.
  return window_.telling() ? kBatch : kBatch / 4;
}

void Balancer::openBatch(Nanoseconds now) {
  visit_count_ = acted_ = 0;
  const size_t most = looksAtOnce();
  size_t taken = 0;
  while (taken < next_count_ && visit_count_ < most) {
    const auto [granule, look] = next_[taken++];
    open(granule, look, threadCpuTime());
  }
  std::move(next_.begin() + taken, next_.begin() + next_count_, next_.begin());
  next_count_ -= taken;
  const size_t local_until = visit_count_ + shares_.takeLocal(most - visit_count_);
  while (visit_count_ < local_until && openNext(local_order_, Look::kLocal)) {
  }
  while (visit_count_ < most && openNext(far_order_, Look::kDirect)) {
  }
  while (visit_count_ < most && openNext(local_order_, Look::kLocal)) {
  }
  watching_ = visit_count_ > 0;
  opened_at_ = now;
}

bool Balancer::openNext(SpreadOrder& order, Look look) {
  const Nanoseconds start = threadCpuTime();
  const uint64_t granules = end().value();
  for (uint64_t looked = 0; looked < granules; ++looked) {
    const GranuleIndex granule(order.next(granules));
    const bool any =
        look == Look::kLocal ? core_.space->hasLocal(granule) : core_.space->hasPages(granule);
    if (any && open(granule, look, start)) return true;
  }
  charge(threadCpuTime() - start);
  return false;
}

bool Balancer::open(GranuleIndex index, Look look, Nanoseconds since) {
  // What is watched already would be seen by the other watch being set up and ended.
  for (size_t i = 0; i < visit_count_; ++i) {
    if (visits_[i].granule == index) return false;
  }
  // What the program has placed stays there, however it is used.
  if (!core_.space->placements().of(index).isFree()) return false;
  const GranuleLock granule(*core_.space, index);
  Places wanted = placesOf(*core_.space, granule);
  if (look == Look::kLocal) {
    wanted = sampleOf(wanted);
  } else {
    wanted.local.reset();
    if (look != Look::kWhole) {
      if (!cheapToWatch(wanted.direct)) return false;
      forRuns(PageSet(wanted.direct), [&](uint64_t first, uint64_t count) {
        for (uint64_t i = 0; count < AccessWatch::kLeastHidden && i < count; ++i) {
          wanted.direct.reset(first + i);
        }
      });
    }
  }
  // Nor what cannot come back.
  if (wanted.direct.any() && !mover_.whole.canPromote() && mover_.homes.liesWhole(granule)) {
    return false;
  }
  if (wanted.direct.none() && wanted.local.none()) return false;
  TP_CHECK_OP(visit_count_, <, visits_.size());
  Visit& visit = visits_[visit_count_];
  visit = {index, look, {}, false, false, 0, Nanoseconds(0)};
  const uint64_t faults = watch_->open(visit_count_++, granule, wanted);
  chargeVisit(visit, since, static_cast<double>(faults) * kTouchNs);
  return true;
}

Places Balancer::sampleOf(const Places& places) {
  Places sample;
  if (places.direct.none()) {
    sample.local = places.local;
    return sample;
  }
  // A few runs from where the last turns have not been, wrapping round.
  const uint64_t runs = runsIn(places.local);
  if (runs == 0) return sample;
  const uint64_t from = local_order_.rounds() * kSampledRuns % runs;
  uint64_t number = 0;
  forRuns(places.local, [&](uint64_t first, uint64_t count) {
    if ((number++ + runs - from) % runs >= kSampledRuns) return;
    for (uint64_t i = 0; i < count; ++i) sample.local.set(first + i);
  });
  return sample;
}

void Balancer::closeBatch(Nanoseconds now) {
  WatchWindow::Sample far, local;
  for (size_t i = 0; i < visit_count_; ++i) closeVisit(visits_[i], far, local);
  const Nanoseconds lasted = now - opened_at_;
  const uint64_t managed = core_.stats->managed_bytes.load(std::memory_order_relaxed) >> kPageShift;
  const uint64_t held = std::min(core_.budget.held().value(), managed);
  const WatchWindow::Sizes sizes{managed - held, held, core_.budget.limit().value()};
  window_.observe(lasted, far, local, sizes, moveWorth().longestWindow());
  if (window_.telling()) {
    const WatchWindow::Use use = window_.use(sizes);
    count(core_.stats->sampled_local_pages, use.local);
    count(core_.stats->sampled_far_pages, use.far);
  }
  for (size_t i = 0; i < visit_count_; ++i) {
    Visit& visit = visits_[i];
    visit.telling = window_.telling();
    looks_.note(visit.granule, now);
    const Nanoseconds start = threadCpuTime();
    const GranuleLock granule(*core_.space, visit.granule);
    if (visit.look == Look::kLocal) {
      scoreLocal(granule, visit);
    } else {
      scoreDirect(visit);
    }
    chargeVisit(visit, start, 0);
  }
  watching_ = false;
}

void Balancer::closeVisit(Visit& visit, WatchWindow::Sample& far, WatchWindow::Sample& local) {
  const Nanoseconds start = threadCpuTime();
  const size_t slot = static_cast<size_t>(&visit - visits_.data());
  const GranuleLock granule(*core_.space, visit.granule);
  visit.found = watch_->close(slot, granule);
  const uint64_t far_seen = (visit.found.seen & visit.found.watched.direct).count();
  const uint64_t local_seen = (visit.found.seen & visit.found.watched.local).count();
  const uint64_t far_watched = visit.found.watched.direct.count();
  const uint64_t local_watched = visit.found.watched.local.count();
  // Looked at again since pages were seen there, it is no sample of all.
  if (visit.look != Look::kAgain) far.add(far_watched, far_seen);
  local.add(local_watched, local_seen);
  count(source_->count, far_watched + local_watched);
  chargeVisit(
      visit, start,
      static_cast<double>(local_seen) * kWriteNs + static_cast<double>(far_seen) * kTouchNs);
}

void Balancer::chargeVisit(Visit& visit, Nanoseconds since, double faults_ns) {
  const Nanoseconds spent = threadCpuTime() - since + Nanoseconds(static_cast<uint64_t>(faults_ns));
  visit.cost += spent;
  charge(spent);
}

void Balancer::charge(Nanoseconds spent) {
  sampling_ns_ -= static_cast<double>(spent.value());
  count(source_->cpu_nanoseconds, spent.value());
  count(core_.stats->sampling_cpu_nanoseconds, spent.value());
}

void Balancer::prove(const GranuleLock& granule, PageIndex page, bool seen) {
  const PageWord word = core_.space->word(page);
  if (!word.has(kFlagUnproven) || !word.has(kFlagShadow)) return;
  core_.space->change(granule, page, word, word.without(kFlagUnproven));
  bar_.note(seen);
  if (seen) return;
  count(core_.stats->wasted_migrations, 1);
}

void Balancer::scoreDirect(const Visit& visit) {
  const PageIndex first = firstPage(visit.granule);
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const bool seen = visit.found.seen[i];
    if (!visit.found.watched.direct[i]) continue;
    const PageScore before = score(first + i);
    setScore(first + i, seen && !visit.telling ? before.glimpsed() : before.watchedFar(seen));
  }
}

void Balancer::scoreLocal(const GranuleLock& granule, Visit& visit) {
  const PageIndex first = granule.first();
  uint64_t believed = 0, confirmed = 0;
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const bool seen = visit.found.seen[i];
    if (!visit.found.watched.local[i]) continue;
    const PageIndex page = first + i;
    const PageScore before = score(page);
    if (seen && !visit.telling) {
      setScore(page, before.glimpsed());
      continue;
    }
    if (before.writtenHot()) {
      ++believed;
      confirmed += seen ? 1 : 0;
    }
    // What came on one sighting must soon be seen again.
    const bool doubtful = !seen && core_.space->word(page).has(kFlagUnproven);
    const PageScore now = doubtful ? before.doubted() : before.watchedLocal(seen);
    setScore(page, now);
    visit.cooled += now.cold() && !before.cold() ? 1 : 0;
  }
  visit.outdated = beliefOutdated(believed, confirmed);
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    // Where the hot pages have changed, those before were not promoted in vain.
    if (visit.found.watched.local[i])
      prove(granule, first + i, visit.found.seen[i] || visit.outdated);
  }
  if (!visit.outdated) return;
  const PageSet local = placesOf(*core_.space, granule).local;
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    if (!local[i] || visit.found.seen[i]) continue;
    setScore(first + i, score(first + i).outdated());
    ++visit.cooled;
  }
}

MoveWorth Balancer::moveWorth() const {
  uint64_t latency = 0;
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    const DirectTier* tier = core_.tiers.direct(number);
    if (tier != nullptr) latency = std::max(latency, tier->extraLoadLatency().value());
  }
  // Where some are mapped whole, a sighting means that any page of a granule was used, and all of
  // it has to move. Beside them, single pages must be used as often.
  return {mover_.whole.canPromote() ? kMoveGranule : kMovePage, Nanoseconds(latency)};
}

void Balancer::act() {
  const Nanoseconds start = threadCpuTime();
  const double had = moving_ns_;
  if (acted_ == 0 && worthMoving()) makeRoom();
  while (acted_ < visit_count_ && moving_ns_ > 0 && rate_.open(mover_.transfer.moved())) {
    const size_t end = std::min(visit_count_, acted_ + mover_.promoter.granulesALook());
    // What is begun counts before it has moved: otherwise all of them could overdraw the rate.
    while (acted_ < end && rate_.open(mover_.transfer.moved() + toBytes(begun_))) {
      actOn(visits_[acted_++]);
    }
    finishPromotions();
    moving_ns_ = had - static_cast<double>((threadCpuTime() - start).value());
  }
  count(core_.stats->moving_cpu_nanoseconds, (threadCpuTime() - start).value());
  sayIfHeld();
}

void Balancer::sayIfHeld() {
  const uint64_t held = core_.stats->promotions_held_by_pins.load(std::memory_order_relaxed);
  if (said_held_ || held < kHeldWorthSaying) return;
  said_held_ = true;
  char holder[96];
  os::describePinning(holder);
  reportError(core_,
              "pages in use stay in far memory: %s may have some pinned for a device; give --conf "
              "pins:never if the program pins no memory that it allocated itself",
              holder);
}

void Balancer::actOn(const Visit& visit) {
  const bool worth = worthMoving();
  const GranuleLock granule(*core_.space, visit.granule);
  uint64_t wrong = visit.cooled;
  if (visit.look == Look::kLocal) {
    // Where few pages are used a few silent ones may be chance, and there is room for all.
    if (visit.outdated && !window_.scarce()) clear(granule);
    followUp(visit);
  } else if (!visit.telling) {
    // What has been cleared is worth little until it has been looked at.
    if (visit.look == Look::kWhole) lookNext(visit.granule, visit.look);
  } else if (worth) {
    const PageSet hot = hotOf(visit);
    wrong = hot.count();
    beginPromotion(granule, hot);
    askAgain(visit, hot);
  }
  countRuns(granule);
  // A look at the whole follows from one at local pages, whatever the shares.
  if (visit.telling && visit.look != Look::kWhole) {
    shares_.note(visit.look == Look::kLocal ? LookShares::Kind::kLocal : LookShares::Kind::kFar,
                 wrong, visit.cost);
  }
  const uint64_t watched = (visit.found.watched.direct | visit.found.watched.local).count();
  if (watched == 0) return;
  const double share = static_cast<double>(wrong) / static_cast<double>(watched);
  unrest_ += (std::min(share, 1.0) - unrest_) / 16;
}

void Balancer::followUp(const Visit& visit) {
  const PageSet direct = placesOf(*core_.space, visit.granule).direct;
  if (direct.any() && (visit.outdated || sampling_ns_ > kPlentyNs)) {
    lookNext(visit.granule, Look::kWhole);
  }
}

void Balancer::askAgain(const Visit& visit, const PageSet& hot) {
  const bool doubtful = (visit.found.seen & visit.found.watched.direct & ~hot).any();
  if (window_.scarce() && visit.look == Look::kDirect && doubtful) {
    lookNext(visit.granule, Look::kAgain);
  }
}

void Balancer::lookNext(GranuleIndex granule, Look look) {
  if (next_count_ < next_.size()) next_[next_count_++] = {granule, look};
}

void Balancer::judgeMoves(Nanoseconds now) {
  if (now - judged_at_ < kJudgeEvery) return;
  judged_at_ = now;
  bar_.judge();
}

PageSet Balancer::hotOf(const Visit& visit) const {
  const Places places = placesOf(*core_.space, visit.granule);
  // Where the hot pages have been chosen before, one that is seen is more likely a cold page seen
  // by chance: it must be seen twice.
  const Evidence wanted = window_.scarce()     ? Evidence::kRunning
                          : places.local.any() ? Evidence::kAgain
                                               : Evidence::kOnce;
  PageSet hot = places.direct & visit.found.watched.direct & visit.found.seen;
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    if (hot[i] && !score(firstPage(visit.granule) + i).enough(wanted)) hot.reset(i);
  }
  return hot;
}

void Balancer::beginPromotion(const GranuleLock& granule, const PageSet& hot) {
  if (mover_.homes.liesWhole(granule)) {
    // Its pages are one page to the processor: what was seen is that any was used.
    if (hot.any()) mover_.whole.promote(granule);
    return;
  }
  TP_CHECK_OP(promoted_count_, <, promoted_.size());
  Promoted& promoted = promoted_[promoted_count_];
  promoted.hot = hot;
  promoted.granule = granule;
  auto& [runs, count, closed, place] = promoted.promotion;
  count = 0;
  const PageIndex first = granule.first();
  const PageSet direct =
      placesOf(*core_.space, granule).direct & mover_.homes.movablePages(granule);
  const uint64_t bridge = bridgeFor(core_.budget.limit().value(), most_runs_);
  for (uint64_t at = 0; at < kPagesPerGranule && run_count_ + begun_runs_ + count < most_runs_;) {
    if (!hot[at] || !direct[at]) {
      ++at;
      continue;
    }
    uint64_t stop = at + 1;
    for (uint64_t next = stop; next < kPagesPerGranule && direct[next] && next - stop <= bridge;
         ++next) {
      if (hot[next]) stop = next + 1;
    }
    const DirectTier& tier = *core_.tiers.direct(core_.space->word(first + at).tier());
    if (count < runs.size() && (tier.mapUnit().value() == 1 || stop - at == kPagesPerGranule)) {
      runs[count++] = {first + at, stop - at};
    }
    at = stop;
  }
  mover_.promoter.close(granule, promoted.promotion);
  if (promoted.promotion.closed == 0) return;
  ++promoted_count_;
  begun_runs_ += promoted.promotion.closed;
  for (size_t run = 0; run < promoted.promotion.closed; ++run) begun_ += PageCount(runs[run].count);
}

void Balancer::finishPromotions() {
  if (promoted_count_ == 0) return;
  // After all of them were closed to writers.
  const bool pinned = mover_.promoter.lookForPins();
  for (size_t i = 0; i < promoted_count_; ++i) {
    const Promoted& promoted = promoted_[i];
    const GranuleLock granule(*core_.space, promoted.granule);
    const size_t moved = mover_.promoter.finish(granule, promoted.promotion, pinned);
    for (size_t run = 0; run < moved; ++run) {
      markUnproven(granule, promoted.promotion.runs[run], promoted.hot);
    }
    countRuns(granule);
  }
  promoted_count_ = 0;
  begun_runs_ = 0;
  begun_ = PageCount();
}

void Balancer::markUnproven(const GranuleLock& granule, const Promoter::Run& run,
                            const PageSet& hot) {
  for (uint64_t i = 0; i < run.count; ++i) {
    const PageIndex page = run.first + i;
    if (!hot[page.value() % kPagesPerGranule]) continue;  // a bridged gap proves nothing
    const PageWord word = core_.space->word(page);
    core_.space->change(granule, page, word, word.with(kFlagUnproven));
  }
}

void Balancer::makeRoom() {
  // A granule at a time comes from a tier that is mapped whole.
  const uint64_t least = mover_.whole.canPromote() ? kPagesPerGranule + 64 : 64;
  uint64_t wanted = std::clamp<uint64_t>(core_.budget.limit().value() / 32, least, 8192);
  // A hot range in one piece comes by the granule, all of it or nothing.
  uint64_t seen = 0;
  for (size_t i = 0; i < visit_count_; ++i) {
    const AccessWatch::Seen& found = visits_[i].found;
    if (visits_[i].telling) seen += (found.seen & found.watched.direct).count();
  }
  wanted = std::max(wanted, seen);
  for (uint64_t looked = 0; looked < end().value() && core_.budget.room().value() < wanted &&
                            rate_.open(mover_.transfer.moved());
       ++looked) {
    if (cold_hand_ >= end()) cold_hand_ = GranuleIndex(0);
    if (!core_.space->hasLocal(cold_hand_)) {
      ++cold_hand_;
      continue;
    }
    const GranuleLock granule(*core_.space, cold_hand_);
    if (demoteCold(granule) > 0) countRuns(granule);
    ++cold_hand_;
  }
}

uint64_t Balancer::demoteCold(const GranuleLock& granule) {
  const PageIndex first = firstPage(granule);
  const PageSet local = placesOf(*core_.space, granule).local;
  if (local.none()) return 0;
  PageSet cold;
  forRuns(local, [&](uint64_t at, uint64_t count) {
    for (uint64_t i = at; i < at + count; ++i) cold[i] = score(first + i).cold();
  });
  const uint64_t bridge = bridgeFor(core_.budget.limit().value(), most_runs_);
  uint64_t moved = 0;
  forRuns(cold, [&](uint64_t at, uint64_t count) {
    const bool joined_before = at > 0 && local[at - 1];
    const bool joined_after = at + count < kPagesPerGranule && local[at + count];
    // A gap as short as those that promotion bridges is not worth two mappings.
    if (count <= bridge && joined_before && joined_after) return;
    moved += mover_.demoter.demote(granule, first + at, count);
  });
  return moved;
}

void Balancer::clear(const GranuleLock& granule) {
  forRuns(placesOf(*core_.space, granule).local, [&](uint64_t at, uint64_t count) {
    mover_.demoter.demote(granule, granule.first() + at, count);
  });
}

void Balancer::countRuns(const GranuleLock& granule) {
  const Places places = placesOf(*core_.space, granule);
  const uint16_t runs =
      places.direct.any() ? static_cast<uint16_t>(runsIn(places.local)) : uint16_t{0};
  uint16_t& known = reinterpret_cast<uint16_t*>(runs_.data())[GranuleIndex(granule).value()];
  TP_DCHECK_OP(run_count_, >=, known);
  run_count_ = run_count_ - known + runs;
  known = runs;
}

}  // namespace tidepool
