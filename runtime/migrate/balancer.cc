// SPDX-License-Identifier: Apache-2.0
// Sampling and placement for direct tiers. Each granule is opened (its pages hidden or armed),
// left alone for one window, then closed: what came back is what the program used.
#include "runtime/migrate/balancer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "runtime/os/memory.h"
#include "runtime/stats/stats_region.h"

namespace tidepool {
namespace {

// What a sighting costs the program: one minor fault, or one tracked write.
constexpr double kSightingNs = 700;
// Moving one page by itself: barrier, copy, mapping, flush (measured about 20 us, both ways).
constexpr double kMoveNs = 20'000;
// How long the present is believed to last.
constexpr double kHorizonNs = 10e9;
// Share of one core for moving pages, and the most that may be saved up.
constexpr double kMovingShare = 0.25;
constexpr double kMostSavedNs = 200e6;
constexpr Nanoseconds kShortest(1'000'000);
constexpr Nanoseconds kLongest(2'000'000'000);
constexpr Nanoseconds kIdle(20'000'000);
// Cold pages between hot ones that are promoted along, or left local: a run costs two mappings.
constexpr uint64_t kBridge = 3;
// Pages seen in a window, as a share of those that fit locally: half, so that what is promoted on
// one sighting is far above the average and room is left for bridged gaps.
constexpr double kSeenShare = 0.5;
// Share of seen pages that are far, below which placement is good and samples are saved up for
// when it is not.
constexpr double kSettled = 0.15;
constexpr double kUnsettled = 0.3;
constexpr uint64_t kLocalEvery = 4;
constexpr double kReserveNs = 150e6;
constexpr Nanoseconds kJudgeEvery(1'000'000'000);
// A page seen once in a well-tuned window is probably hot; it is cold once its score is back at 0.
constexpr uint8_t kSeenGain = 4;
constexpr uint8_t kMostScore = 16;
constexpr uint8_t kObserved = 0x80;

uint64_t maxMapCount() {
  uint64_t most = 65530;
  if (FILE* file = fopen("/proc/sys/vm/max_map_count", "re")) {
    if (fscanf(file, "%lu", &most) != 1) most = 65530;
    fclose(file);
  }
  return most;
}

}  // namespace

Balancer::Balancer(Core& core, GranuleMover& mover, Mapping scores, UniqueFd pagemap)
    : core_(core),
      mover_(mover),
      scores_(std::move(scores)),
      pagemap_(std::move(pagemap)),
      rate_(core.options.migration_rate) {}

Result<std::unique_ptr<Balancer>> Balancer::create(Core& core, GranuleMover& mover) {
  auto scores = Mapping::anonymous(Bytes(core.space->pageEnd().value()));
  if (!scores) return tl::unexpected(scores.error());
  auto pagemap = os::openPagemap();
  if (!pagemap) return tl::unexpected(pagemap.error());
  std::unique_ptr<Balancer> balancer(
      new Balancer(core, mover, std::move(*scores), std::move(*pagemap)));
  balancer->source_ = addStatsSource(*core.stats, "unmap");
  TP_CHECK(balancer->source_ != nullptr);
  // Each promoted run in a direct granule costs two mappings. Half of what the kernel allows is
  // left to the program.
  balancer->most_splits_ = maxMapCount() / 4;
  return balancer;
}

Nanoseconds Balancer::step(Nanoseconds now) {
  if (!core_.options.sampling || core_.barrier == nullptr || !core_.port->tracksWrites()) {
    return kLongest;
  }
  const double elapsed = static_cast<double>((now - earned_at_).value());
  if (earned_at_.value() != 0) {
    sampling_ns_ = std::min(sampling_ns_ + elapsed * core_.options.sampling_cpu, kMostSavedNs);
    moving_ns_ = std::min(moving_ns_ + elapsed * kMovingShare, kMostSavedNs);
  }
  earned_at_ = now;
  rate_.earn(now, mover_.moved());
  judgeMoves(now);
  if (moving_ns_ > 0 && worthMoving()) makeRoom();
  while (open_count_ > 0 && now - open_[open_first_].since >= window_) {
    const Watch watch = open_[open_first_];
    open_first_ = (open_first_ + 1) % kOpen;
    --open_count_;
    closeWatch(watch);
  }
  const double keep = misplaced_ < kSettled ? kReserveNs : 0;
  while (open_count_ < kOpen && sampling_ns_ > keep && openWatch(now)) {
  }
  if (open_count_ == 0) return kIdle;
  const Nanoseconds due = open_[open_first_].since + window_;
  return due > now ? std::min(due - now, kIdle) : Nanoseconds(0);
}

Balancer::View Balancer::look(GranuleIndex granule) const {
  View view;
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageState state = core_.space->word(firstPage(granule) + i).state();
    view.direct[i] = state == PageState::kDirect;
    view.local[i] = state == PageState::kLocal;
  }
  return view;
}

bool Balancer::openWatch(Nanoseconds now) {
  const GranuleIndex end = granuleOf(core_.space->highWater() + (kPagesPerGranule - 1));
  for (uint64_t looked = 0; looked < end.value(); ++looked) {
    if (hand_ >= end) {
      hand_ = GranuleIndex(0);
      ++turn_;
    }
    const GranuleIndex granule = hand_;
    ++hand_;
    MutexLock lock(core_.space->lockOf(granule));
    View view = look(granule);
    // Local pages are mostly hot, so that watching them is dear (each sighting is a fault) and
    // tells little: a quarter of the turns will do, unless much is in the wrong place.
    const bool watch_local = misplaced_ > kUnsettled || turn_ % kLocalEvery == 0;
    if (!watch_local) view.local.reset();
    if (view.direct.none() && view.local.none()) continue;
    const Nanoseconds start = threadCpuTime();
    for (uint64_t at = 0; at < kPagesPerGranule;) {
      uint64_t run = 1;
      while (at + run < kPagesPerGranule && view.direct[at + run] == view.direct[at] &&
             view.local[at + run] == view.local[at]) {
        ++run;
      }
      const uintptr_t address = core_.space->addressOf(firstPage(granule) + at);
      if (view.direct[at]) os::zapShared(address, Bytes(run * kPageSize));
      if (view.local[at]) {
        [[maybe_unused]] const Status armed =
            core_.port->writeProtect(address, Bytes(run * kPageSize), Wake::kNo);
      }
      at += run;
    }
    charge(threadCpuTime() - start);
    open_[(open_first_ + open_count_++) % kOpen] = {granule, now, watch_local};
    return true;
  }
  return false;
}

void Balancer::readSeen(GranuleIndex granule, View& view) {
  const PageIndex first = firstPage(granule);
  const uintptr_t start = core_.space->addressOf(granule);
  std::array<os::PageRun, 256> runs;
  for (const bool local : {false, true}) {
    if ((local ? view.local : view.direct).none()) continue;
    for (uintptr_t at = start; at < start + kGranuleSize;) {
      uintptr_t walked = at;
      const Bytes left(start + kGranuleSize - at);
      const auto found =
          local ? os::scanWritten(pagemap_.get(), at, left, runs.data(), runs.size(), &walked)
                : os::scanPresent(pagemap_.get(), at, left, runs.data(), runs.size(), &walked);
      if (!found || walked <= at) break;
      for (size_t i = 0; i < *found; ++i) {
        for (uintptr_t page = runs[i].start; page < runs[i].end; page += kPageSize) {
          const uint64_t index = core_.space->pageAt(page) - first;
          if ((local ? view.local : view.direct)[index]) view.seen.set(index);
        }
      }
      at = walked;
    }
  }
}

void Balancer::closeWatch(const Watch& watch) {
  MutexLock lock(core_.space->lockOf(watch.granule));
  const Nanoseconds start = threadCpuTime();
  View view = look(watch.granule);
  if (!watch.local) view.local.reset();
  if (view.direct.none() && view.local.none()) return;
  readSeen(watch.granule, view);
  score(watch.granule, view);
  const Nanoseconds spent = threadCpuTime() - start;
  charge(spent +
         Nanoseconds(static_cast<uint64_t>(kSightingNs * static_cast<double>(view.seen.count()))));
  count(source_->count, (view.direct | view.local).count());
  adaptWindow(view);
  move(watch.granule, view);
}

void Balancer::charge(Nanoseconds spent) {
  sampling_ns_ -= static_cast<double>(spent.value());
  count(source_->cpu_nanoseconds, spent.value());
  count(core_.stats->sampling_cpu_nanoseconds, spent.value());
}

void Balancer::score(GranuleIndex granule, const View& view) {
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    if (!view.direct[i] && !view.local[i]) continue;
    const PageIndex page = firstPage(granule) + i;
    uint8_t& score = scoreOf(page);
    const uint8_t sightings = score & ~kObserved;
    score = kObserved |
            (view.seen[i] ? std::min<uint8_t>(sightings + kSeenGain, kMostScore) : sightings / 2);
    const PageWord word = core_.space->word(page);
    if (!word.has(kFlagUnproven) || !word.has(kFlagShadow)) continue;
    core_.space->change(page, word, word.without(kFlagUnproven));
    if (!view.seen[i]) {
      ++wasted_;
      count(core_.stats->wasted_migrations, 1);
    }
  }
}

void Balancer::adaptWindow(const View& view) {
  if (view.seen.any()) {
    const double far = static_cast<double>((view.seen & view.direct).count()) /
                       static_cast<double>(view.seen.count());
    misplaced_ += (far - misplaced_) / 16;
  }
  const double watched = static_cast<double>((view.direct | view.local).count());
  const double managed =
      static_cast<double>(core_.stats->managed_bytes.load(std::memory_order_relaxed));
  const double capacity = static_cast<double>(toBytes(core_.budget.limit()).value());
  if (managed <= 0 || watched <= 0) return;
  const double share = std::min(1.0, kSeenShare * capacity / managed);
  const double seen = static_cast<double>(view.seen.count()) / watched;
  // Small steps: each granule is one noisy observation of the share.
  const double step = seen > share ? 0.95 : 1.05;
  window_ =
      std::clamp(Nanoseconds(static_cast<uint64_t>(static_cast<double>(window_.value()) * step)),
                 kShortest, kLongest);
}

bool Balancer::worthMoving() const {
  if (!rate_.open(mover_.moved())) return false;
  // A page seen in a window is used at least about once in it, and each use saves the latency.
  uint64_t latency = 0;
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    const DirectTier* tier = core_.tiers.direct(number);
    if (tier != nullptr) latency = std::max(latency, tier->extraLoadLatency().value());
  }
  const double uses = kHorizonNs / static_cast<double>(window_.value());
  return uses * static_cast<double>(latency) > kMoveNs * bar_;
}

void Balancer::move(GranuleIndex granule, const View& view) {
  if (moving_ns_ <= 0 || !worthMoving()) return;
  const Nanoseconds start = threadCpuTime();
  promoteSeen(granule, view);
  moving_ns_ -= static_cast<double>((threadCpuTime() - start).value());
}

void Balancer::judgeMoves(Nanoseconds now) {
  if (now - judged_at_ < kJudgeEvery) return;
  judged_at_ = now;
  // More than half of the promotions undone soon after: ask for more before the next ones.
  bar_ = wasted_ * 2 > promoted_ ? std::min(bar_ * 2, 64.0) : std::max(bar_ / 2, 1.0);
  promoted_ = wasted_ = 0;
}

void Balancer::promoteSeen(GranuleIndex granule, const View& view) {
  std::array<GranuleMover::Run, kPagesPerGranule / 2> runs;
  size_t count = 0;
  const PageIndex first = firstPage(granule);
  const auto hot = [&](uint64_t i) { return view.direct[i] && view.seen[i]; };
  for (uint64_t at = 0; at < kPagesPerGranule && splits_ + count < most_splits_;) {
    if (!hot(at)) {
      ++at;
      continue;
    }
    uint64_t end = at + 1;
    for (uint64_t next = end; next < kPagesPerGranule && view.direct[next] && next - end <= kBridge;
         ++next) {
      if (hot(next)) end = next + 1;
    }
    const DirectTier& tier = *core_.tiers.direct(core_.space->word(first + at).tier());
    if (tier.mapUnit().value() == 1 || end - at == kPagesPerGranule) {
      runs[count++] = {first + at, end - at};
    }
    at = end;
  }
  const size_t moved = mover_.promote({runs.data(), count});
  splits_ += moved;
  for (size_t i = 0; i < moved; ++i) {
    for (uint64_t page = runs[i].first - first; page < runs[i].first - first + runs[i].count;
         ++page) {
      if (!view.seen[page]) continue;  // a bridged gap proves nothing
      const PageWord word = core_.space->word(first + page);
      core_.space->change(first + page, word, word.with(kFlagUnproven));
      ++promoted_;
    }
  }
}

void Balancer::makeRoom() {
  const uint64_t wanted = std::clamp<uint64_t>(core_.budget.limit().value() / 32, 64, 8192);
  const GranuleIndex end = granuleOf(core_.space->highWater() + (kPagesPerGranule - 1));
  const Nanoseconds start = threadCpuTime();
  for (uint64_t looked = 0;
       looked < end.value() && core_.budget.room().value() < wanted && rate_.open(mover_.moved());
       ++looked) {
    if (cold_hand_ >= end) cold_hand_ = GranuleIndex(0);
    MutexLock lock(core_.space->lockOf(cold_hand_));
    demoteCold(cold_hand_);
    ++cold_hand_;
  }
  moving_ns_ -= static_cast<double>((threadCpuTime() - start).value());
}

void Balancer::demoteCold(GranuleIndex granule) {
  const PageIndex first = firstPage(granule);
  const PageSet local = look(granule).local;
  if (local.none()) return;
  const auto cold = [&](uint64_t i) { return local[i] && scoreOf(first + i) == kObserved; };
  for (uint64_t at = 0; at < kPagesPerGranule;) {
    if (!cold(at)) {
      ++at;
      continue;
    }
    uint64_t run = 1;
    while (at + run < kPagesPerGranule && cold(at + run)) ++run;
    const bool joined_before = at > 0 && local[at - 1];
    const bool joined_after = at + run < kPagesPerGranule && local[at + run];
    // A gap as short as those that promotion bridges is not worth two mappings.
    const bool bridge = run <= kBridge && joined_before && joined_after;
    if (!bridge && mover_.demote(first + at, run) > 0) {
      if (!joined_before && !joined_after && splits_ > 0) --splits_;
      if (joined_before && joined_after) ++splits_;
    }
    at += run;
  }
}

}  // namespace tidepool
