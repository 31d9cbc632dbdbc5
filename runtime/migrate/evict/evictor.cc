// SPDX-License-Identifier: Apache-2.0
// Eviction to fetch tiers: which pages go, and their way out of the space. What becomes of them
// then is in evictor_write.cc. Page words change under the granule's lock; where both are taken,
// the policy's lock comes after a granule's.
#include "runtime/migrate/evict/evictor.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/debug_check.h"
#include "runtime/os/memory.h"
#include "runtime/stats/stats_region.h"

namespace tidepool {
namespace {

// Pages that did not move are let be for so many times as long as the vain attempts took: one
// twentieth of the time at most goes into them.
constexpr uint64_t kLetBe = 20;
// Of a tracked write, which the kernel resolves itself; measured.
constexpr Nanoseconds kWriteFaultCost(800);

constexpr Arrival arrivalOf(PageWord word) {
  return word.has(kFlagUnproven) ? Arrival::kScan : Arrival::kFault;
}

}  // namespace

Evictor::Evictor(Core& core, Staging& staging, SharedPolicy& policy)
    : core_(core), staging_(staging), policy_(policy), channels_(core.tiers) {}

Result<std::unique_ptr<Evictor>> Evictor::create(Core& core, Staging& staging,
                                                 SharedPolicy& policy) {
  std::unique_ptr<Evictor> evictor(new Evictor(core, staging, policy));
  evictor->usable_ = core.tiers.hasFetch();
  evictor->full_ = core.tiers.moreMayCome();
  auto pool = PoolKeeper::create(core, policy, evictor->channels_);
  if (!pool) return tl::unexpected(pool.error());
  evictor->pool_ = std::move(*pool);
  auto pagemap = os::openPagemap();
  if (!pagemap) return tl::unexpected(pagemap.error());
  evictor->pagemap_ = std::move(*pagemap);
  auto bounce = Mapping::anonymous(Bytes(kClusterPages * kPageSize));
  if (!bounce) return tl::unexpected(bounce.error());
  evictor->bounce_ = std::move(*bounce);
  auto seen = Mapping::anonymous(Bytes(Staging::kSlotsPerSegment * kPageSize));
  if (!seen) return tl::unexpected(seen.error());
  evictor->seen_ = std::move(*seen);
  evictor->source_ = addStatsSource(*core.stats, "write-tracking");
  TP_CHECK(evictor->source_ != nullptr);
  if (!core.fork.servedChild()) TP_TRY(evictor->channels_.openAll());
  return evictor;
}

uint64_t Evictor::freeSegment() const {
  for (uint64_t segment = 0; segment < Staging::kSegments; ++segment) {
    if (batches_[segment].used == 0) return segment;
  }
  return kNoSegment;
}

PageCount Evictor::start(PageCount wanted) {
  uint64_t started = 0;
  while (usable_ && started < wanted.value()) {
    const uint64_t segment = freeSegment();
    if (segment == kNoSegment) break;
    // Its memory is nobody's any more.
    TP_CHECK(batches_[segment].writes_left == 0 && batches_[segment].written_as == 0);
    const Fill filled = fill(segment, PageCount(wanted.value() - started));
    started += batches_[segment].used;
    if (batches_[segment].used > 0) write(segment);
    if (filled == Fill::kNothingCold) break;
  }
  return PageCount(started);
}

Evictor::Fill Evictor::fill(uint64_t segment, PageCount wanted) {
  Batch& batch = batches_[segment];
  const uint64_t most = std::min(wanted.value(), Staging::kSlotsPerSegment);
  const uint64_t granules = granuleOf(core_.space->highWater() + kPagesPerGranule).value();
  takeBehindStreams(segment, most);
  // The policy lowers its bar as the hand goes round in vain; three turns are its chance, then
  // anything local must do: the budget is a promise.
  for (const Choice choice : {Choice::kPolicy, Choice::kAnything}) {
    const uint64_t turns = choice == Choice::kPolicy ? 3 : 1;
    for (uint64_t step = 0; step < turns * granules && batch.used < most; ++step) {
      const uint64_t before = batch.used;
      sweep(segment, most, choice);
      if (batch.used > before) step = 0;
    }
    // A part of a batch soon is worth more to those who wait than a full one later.
    if (batch.used > 0) break;
  }
  return batch.used == most ? Fill::kFilled : Fill::kNothingCold;
}

void Evictor::takeBehindStreams(uint64_t segment, uint64_t most) {
  Batch& batch = batches_[segment];
  while (batch.used < most) {
    PageRun run;
    {
      MutexLock lock(policy_.mutex());
      run = policy_.chooser().streams().takeBehind(
          PageCount(std::min(kClusterPages, most - batch.used)));
    }
    if (run.count.value() == 0) return;
    const PageIndex end = run.first + run.count.value();
    for (PageIndex at = run.first; at < end;) {
      const GranuleLock granule(*core_.space, granuleOf(at));
      const PageIndex stop = std::min(end, granule.end());
      moveOut(granule, judgeBehind(granule, {at, PageCount(stop - at)}), segment);
      at = stop;
    }
  }
}

PageSet Evictor::judgeBehind(const GranuleLock& granule, PageRun run) {
  PageSet goes;
  if (placementOf(core_, run.first).isLocal()) return goes;
  MutexLock lock(policy_.mutex());
  for (uint64_t i = 0; i < run.count.value(); ++i) {
    const PageIndex page = run.first + i;
    const PageWord word = core_.space->word(page);
    if (word.state() != PageState::kLocal || word.has(kFlagShadow)) continue;
    goes[page - granule.first()] = policy_.chooser().classifyBehind(page) == Verdict::kEvict;
  }
  return goes;
}

void Evictor::sweep(uint64_t segment, uint64_t most, Choice choice) {
  Batch& batch = batches_[segment];
  if (hand_ >= core_.space->highWater()) hand_ = PageIndex(0);
  const PageIndex first = firstPage(granuleOf(hand_));
  const uint64_t from = hand_ - first;
  if (!core_.space->hasLocal(granuleOf(first)) || placementOf(core_, first).isLocal()) {
    hand_ = first + kPagesPerGranule;
    return;
  }
  const GranuleLock granule(*core_.space, granuleOf(first));
  retryStuck();
  readWritten(granule);
  const uint64_t to = judge(granule, from, most - batch.used, choice);
  policy_.looks().note(granule, core_.clock->now());
  PageSet goes, probed;
  for (uint64_t at = from; at < to; ++at) {
    goes[at] = verdicts_[at] == Verdict::kEvict;
    probed[at] = verdicts_[at] == Verdict::kProbe;
  }
  moveOut(granule, goes, segment);
  forRuns(probed, [&](uint64_t at, uint64_t count) { arm(granule, at, at + count); });
  hand_ = first + to;
}

uint64_t Evictor::judge(const GranuleLock& granule, uint64_t at, uint64_t room, Choice choice) {
  const PageIndex first = granule.first();
  const bool plain = isPlain(granule);
  const uint8_t wanted = placementOf(core_, first).tier();
  const bool placed_far = wanted != 0 && core_.tiers.fetch(wanted) != nullptr;
  const PageSet stuck = stuckOf(granule);
  MutexLock lock(policy_.mutex());
  uint64_t chosen = 0;
  uint64_t written = 0;
  for (; at < kPagesPerGranule && chosen < room; ++at) {
    PageWord word = core_.space->word(first + at);
    verdicts_[at] = Verdict::kKeep;
    // Pages with a home in a direct tier go there (see Balancer), not through staging.
    if (word.state() != PageState::kLocal || word.has(kFlagShadow) || stuck[at]) continue;
    if (rightsOf(first + at, plain) == Rights::kOther) continue;
    if (word.has(kFlagFarCopy) && written_[at]) {
      policy_.copies().outdated(granule, arrivalOf(word));
      word = dropFarCopy(core_, granule, first + at, word);
    }
    WriteBit bit = WriteBit::kNotArmed;
    if (word.has(kFlagProbed)) {
      bit = written_[at] ? WriteBit::kWritten : WriteBit::kClean;
      if (written_[at]) {
        core_.space->change(granule, first + at, word, word.without(kFlagProbed));
        ++written;
      }
    }
    verdicts_[at] = choice == Choice::kAnything || placed_far
                        ? Verdict::kEvict
                        : policy_.chooser().classify(first + at, bit);
    if (verdicts_[at] == Verdict::kEvict) ++chosen;
  }
  // The write faults that arming caused are the program's time: counted at their known cost, which
  // the policy charges itself.
  countSampling(kWriteFaultCost * written);
  return at;
}

void Evictor::readWritten(const GranuleLock& granule) {
  written_.reset();
  PageSet probed, copies;
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageWord word = core_.space->word(granule.first() + i);
    probed[i] = word.has(kFlagProbed);
    copies[i] = word.has(kFlagFarCopy);
  }
  const PageSet asked = probed | copies;
  if (asked.none()) return;
  const Nanoseconds start = threadCpuTime();
  // Without an answer nothing counts as written: who relies on that looks again, in unwritten().
  written_ =
      scanGranule(*core_.kernel, Scan::kWritten, pagemap_.get(), *core_.space, granule, asked)
          .value_or(PageSet());
  if (probed.none()) return;
  const Nanoseconds asking = threadCpuTime() - start;
  chargePolicy(asking);
  count(source_->count, probed.count());
  countSampling(asking);
}

void Evictor::countSampling(Nanoseconds spent) {
  count(source_->cpu_nanoseconds, spent.value());
  count(core_.stats->sampling_cpu_nanoseconds, spent.value());
}

void Evictor::arm(const GranuleLock& granule, uint64_t from, uint64_t to) {
  // Where the kernel does not resolve tracked writes itself, each would be a fault for the service.
  if (!core_.port->tracksWrites()) return;
  const PageIndex first = granule.first();
  const Nanoseconds start = threadCpuTime();
  for (uint64_t at = from; at < to;) {
    const bool copy = core_.space->word(first + at).has(kFlagFarCopy);
    uint64_t end = at + 1;
    while (end < to && core_.space->word(first + end).has(kFlagFarCopy) == copy) ++end;
    // Pages with a far copy have been armed since they came; once more would hide a write.
    if (copy || core_.port->writeProtect(core_.space->addressOf(first + at),
                                         Bytes((end - at) * kPageSize), Wake::kNo)) {
      markProbed(granule, first + at, PageCount(end - at));
    }
    at = end;
  }
  const Nanoseconds spent = threadCpuTime() - start;
  chargePolicy(spent);
  countSampling(spent);
}

void Evictor::markProbed(const GranuleLock& granule, PageIndex first, PageCount pages) {
  for (uint64_t i = 0; i < pages.value(); ++i) {
    const PageWord word = core_.space->word(first + i);
    if (word.state() == PageState::kLocal) {
      core_.space->change(granule, first + i, word, word.with(kFlagProbed));
    }
  }
}

void Evictor::chargePolicy(Nanoseconds cost) {
  MutexLock lock(policy_.mutex());
  policy_.chooser().chargeProbes(cost);
}

bool Evictor::isPlain(GranuleIndex granule) const {
  return core_.space->addresses().plain(core_.space->addressOf(granule), Bytes(kGranuleSize)) &&
         !core_.space->anchored().anyKept(firstPage(granule), kPagesPerGranule);
}

// Pages that stay are like those that nobody may access: none of them leaves.
Rights Evictor::rightsOf(PageIndex page, bool granule_plain) const {
  if (granule_plain) return Rights::kReadWrite;
  if (core_.space->anchored().anyKept(page, 1)) return Rights::kOther;
  return core_.space->addresses().rightsAt(core_.space->addressOf(page));
}

uint64_t Evictor::moveRun(const GranuleLock& granule, PageRun run, Rights rights, uint64_t slot) {
  if (rights == Rights::kOther) return 0;
  if (!core_.port->canMove()) return moveByCopy(granule, run, slot);
  if (rights == Rights::kReadOnly) return moveReadOnly(granule, run, slot);
  const PortResult result = moveOutOfSpace(core_, granule, staging_.slotAddress(slot),
                                           core_.space->addressOf(run.first), toBytes(run.count));
  return toPages(result.done).value();
}

uint64_t Evictor::alikeFrom(PageRun run, bool granule_plain) const {
  const Rights rights = rightsOf(run.first, granule_plain);
  uint64_t length = 1;
  while (length < run.count.value() &&
         core_.space->word(run.first + length).state() == PageState::kLocal &&
         rightsOf(run.first + length, granule_plain) == rights) {
    ++length;
  }
  return length;
}

void Evictor::moveOut(const GranuleLock& granule, const PageSet& goes, uint64_t segment) {
  const PageSet same = unwritten(granule, goes);
  // Then the pages to write are adjacent in the segment: few requests.
  for (const PageSet& part : {goes & ~same, same}) {
    forRuns(part, [&](uint64_t first, uint64_t count) {
      moveOutRun(granule, {granule.first() + first, PageCount(count)}, same, segment);
    });
  }
}

void Evictor::moveOutRun(const GranuleLock& granule, PageRun run, const PageSet& same,
                         uint64_t segment) {
  Batch& batch = batches_[segment];
  const bool plain = isPlain(granule);
  for (uint64_t at = 0; at < run.count.value();) {
    if (core_.space->word(run.first + at).state() != PageState::kLocal) {
      ++at;
      continue;
    }
    const PageRun rest{run.first + at, PageCount(run.count.value() - at)};
    const PageRun part{rest.first, PageCount(alikeFrom(rest, plain))};
    const uint64_t slot = batch.used;
    TP_CHECK_OP(slot + part.count.value(), <=, Staging::kSlotsPerSegment);
    const Rights rights = rightsOf(part.first, plain);
    const Nanoseconds started = core_.clock->now();
    const uint64_t moved = moveRun(granule, part, rights, staging_.firstSlot(segment) + slot);
    for (uint64_t i = 0; i < moved; ++i) {
      const uint64_t page = part.first + i - granule.first();
      // A page that was written between the look and the move differs from what was seen before.
      const bool copied =
          same[page] && memcmp(staging_.slotMemory(staging_.firstSlot(segment) + slot + i),
                               seen_.data() + seen_at_[page] * kPageSize, kPageSize) == 0;
      stage(granule, segment, slot + i, part.first + i, copied);
    }
    batch.used += moved;
    in_flight_ += PageCount(moved);
    at += moved;
    if (moved == part.count.value()) continue;
    // A page that did not move is pinned or gone: leave it and go on behind it. What is copied may
    // stay since the process has any descriptor that may pin, which is over as soon as it is
    // closed.
    if (core_.port->canMove() && rights == Rights::kReadWrite) {
      noteStuck(part.first + moved, core_.clock->now() - started);
    }
    ++at;
  }
}

void Evictor::noteStuck(PageIndex page, Nanoseconds spent) {
  stuck_[granuleOf(page)].set(page - firstPage(granuleOf(page)));
  spent_in_vain_ += spent;
  retry_at_ = core_.clock->now() + spent_in_vain_ * kLetBe;
}

void Evictor::retryStuck() {
  if (stuck_.empty() || core_.clock->now() < retry_at_) return;
  stuck_.clear();
  spent_in_vain_ = Nanoseconds();
}

PageSet Evictor::stuckOf(GranuleIndex granule) const {
  const auto found = stuck_.find(granule);
  return found == stuck_.end() ? PageSet() : found->second;
}

static_assert(Staging::kSlotsPerSegment <= Kernel::kMostReadRuns, "one look a segment");

PageSet Evictor::unwritten(const GranuleLock& granule, const PageSet& pages) {
  TP_CHECK_OP(pages.count(), <=, Staging::kSlotsPerSegment);  // the room of seen_
  PageSet asked;
  std::array<os::PageRun, Staging::kSlotsPerSegment> runs;
  size_t used = 0;
  uint8_t seen = 0;
  forRuns(pages, [&](uint64_t first, uint64_t count) {
    for (uint64_t at = first; at < first + count; ++at) {
      if (!core_.space->word(granule.first() + at).has(kFlagFarCopy)) continue;
      const uintptr_t address = core_.space->addressOf(granule.first() + at);
      if (used > 0 && runs[used - 1].end == address) {
        runs[used - 1].end += kPageSize;
      } else {
        runs[used++] = {address, address + kPageSize};
      }
      asked.set(at);
      seen_at_[at] = seen++;
    }
  });
  if (used == 0) return asked;
  // First the bytes, then whether they were written until after that: of all at once, since each
  // call costs more than a page.
  const uint64_t read = core_.kernel->readPages(seen_.data(), {runs.data(), used}).value();
  forRuns(asked, [&](uint64_t first, uint64_t count) {
    for (uint64_t at = first; at < first + count; ++at) asked[at] = seen_at_[at] < read;
  });
  if (asked.none()) return asked;
  const auto written =
      scanGranule(*core_.kernel, Scan::kWritten, pagemap_.get(), *core_.space, granule, asked);
  return written ? asked & ~*written : PageSet();
}

void Evictor::stage(const GranuleLock& granule, uint64_t segment, uint64_t slot, PageIndex page,
                    bool copied) {
  Batch& batch = batches_[segment];
  PageWord word = core_.space->word(page);
  // Its home would be nobody's.
  TP_CHECK(!word.has(kFlagShadow));
  if (word.has(kFlagFarCopy)) {
    MutexLock lock(policy_.mutex());
    FarCopies& copies = policy_.copies();
    copied ? copies.saved(granule, arrivalOf(word)) : copies.outdated(granule, arrivalOf(word));
  }
  batch.copied[slot] = copied;
  if (copied) {
    batch.frames[slot] = word.frame();
    batch.tiers[slot] = word.tier();
  } else {
    word = dropFarCopy(core_, granule, page, word);
  }
  batch.pages[slot] = page;
  TP_CHECK(core_.space->change(
      granule, page, word,
      PageWord(PageState::kEvicting, 0, 0, staging_.firstSlot(segment) + slot)));
}

uint64_t Evictor::moveByCopy(const GranuleLock&, PageRun run, uint64_t slot) {
  const uintptr_t from = core_.space->addressOf(run.first);
  const Bytes size = toBytes(run.count);
  if (!core_.port->writeProtect(from, size, Wake::kNo)) return 0;
  // A device that was given a page before writers were stopped would write to it after the copy.
  const PageCount copied =
      core_.mayPinPages() ? PageCount()
                          : core_.kernel->readPages(staging_.slotMemory(slot), from, run.count);
  const PageCount gone = toPages(core_.kernel->discardUnlocked(from, toBytes(copied)));
  // Those that stay are locked; their copies would be memory that nobody counts.
  if (gone < copied) staging_.recycle(slot + gone.value(), copied - gone);
  [[maybe_unused]] const Status open = core_.port->writeProtect(from, size, Wake::kYes);
  core_.port->wake(from, size);
  return gone.value();
}

uint64_t Evictor::moveReadOnly(const GranuleLock&, PageRun run, uint64_t slot) {
  // UFFDIO_MOVE refuses them. Nothing can write to them while the granule's lock is held, but for
  // devices that were given them before they became read-only.
  if (core_.mayPinPages()) return 0;
  uint64_t moved = 0;
  while (moved < run.count.value()) {
    const uintptr_t from = core_.space->addressOf(run.first + moved);
    const uint64_t wanted = std::min(kClusterPages, run.count.value() - moved);
    const PageCount pages = core_.kernel->readPages(bounce_.data(), from, PageCount(wanted));
    if (pages == PageCount()) break;
    const PortResult copied = copyAll(*core_.port, staging_.slotAddress(slot + moved),
                                      bounce_.data(), toBytes(pages), Wake::kNo);
    if (copied.outcome != PortOutcome::kDone) break;
    const PageCount gone = toPages(core_.kernel->discardUnlocked(from, toBytes(pages)));
    moved += gone.value();
    if (gone.value() < wanted) {
      staging_.recycle(slot + moved, pages - gone);
      break;
    }
  }
  return moved;
}

size_t Evictor::waits(std::array<Wait, TierSet::kMost>& out) const {
  size_t stored = 0;
  for (const auto& channel : channels_) {
    if (channel == nullptr || channel->inFlight() == 0) continue;
    out[stored++] = {channel->fd(), channel->events(), channel->timeToDeadline()};
  }
  return stored;
}

}  // namespace tidepool
