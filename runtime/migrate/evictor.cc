// SPDX-License-Identifier: Apache-2.0
// Eviction to fetch tiers. Page words change under the granule's lock; where both are taken, the
// policy's lock comes after a granule's.
#include "runtime/migrate/evictor.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/os/memory.h"
#include "runtime/os/pin_check.h"
#include "runtime/stats/stats_region.h"

namespace tidepool {
namespace {

constexpr uint64_t kNoSegment = ~uint64_t{0};
// Pages moved by one call: enough that the call and its TLB flush are shared, few enough that a
// granule's lock is held for microseconds.
constexpr uint64_t kClusterPages = 16;
// Of a tracked write, which the kernel resolves itself; measured.
constexpr Nanoseconds kWriteFaultCost(800);

/// A write's tag: segment and the first slot of its run.
constexpr uint64_t tagOf(uint64_t segment, uint64_t slot) { return segment << 32 | slot; }

}  // namespace

Evictor::Evictor(Core& core, Staging& staging, SharedPolicy& policy)
    : core_(core), staging_(staging), policy_(policy) {}

Result<std::unique_ptr<Evictor>> Evictor::create(Core& core, Staging& staging,
                                                 SharedPolicy& policy) {
  std::unique_ptr<Evictor> evictor(new Evictor(core, staging, policy));
  evictor->usable_ = core.tiers.hasFetch();
  auto pagemap = os::openPagemap();
  if (!pagemap) return tl::unexpected(pagemap.error());
  evictor->pagemap_ = std::move(*pagemap);
  auto bounce = Mapping::anonymous(Bytes(kClusterPages * kPageSize));
  if (!bounce) return tl::unexpected(bounce.error());
  evictor->bounce_ = std::move(*bounce);
  evictor->source_ = addStatsSource(*core.stats, "write-tracking");
  TP_CHECK(evictor->source_ != nullptr);
  for (uint8_t number = 1; number <= core.tiers.count(); ++number) {
    FetchTier* tier = core.tiers.fetch(number);
    if (tier == nullptr) continue;
    auto channel = tier->openChannel();
    if (!channel) return tl::unexpected(channel.error());
    evictor->channels_[number] = std::move(*channel);
  }
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
    std::bitset<kClusterPages> goes;
    {
      MutexLock lock(policy_.mutex());
      run = policy_.chooser().streams().takeBehind(
          PageCount(std::min(kClusterPages, most - batch.used)));
      for (uint64_t i = 0; i < run.count.value(); ++i) {
        const PageWord word = core_.space->word(run.first + i);
        goes[i] = word.state() == PageState::kLocal && !word.has(kFlagShadow) &&
                  policy_.chooser().classifyBehind(run.first + i) == Verdict::kEvict;
      }
    }
    if (run.count.value() == 0) return;
    for (uint64_t i = 0; i < run.count.value(); ++i) {
      if (!goes[i]) continue;
      uint64_t length = 1;
      while (i + length < run.count.value() && goes[i + length] &&
             granuleOf(run.first + i + length) == granuleOf(run.first + i)) {
        ++length;
      }
      MutexLock lock(core_.space->lockOf(granuleOf(run.first + i)));
      batch.used += moveOut({run.first + i, PageCount(length)}, segment);
      i += length - 1;
    }
  }
}

void Evictor::sweep(uint64_t segment, uint64_t most, Choice choice) {
  Batch& batch = batches_[segment];
  if (hand_ >= core_.space->highWater()) hand_ = PageIndex(0);
  const PageIndex first = firstPage(granuleOf(hand_));
  const uint64_t from = hand_ - first;
  MutexLock lock(core_.space->lockOf(granuleOf(first)));
  readWritten(first);
  const uint64_t to = judge(first, from, most - batch.used, choice);
  for (uint64_t at = from; at < to;) {
    const Verdict verdict = verdicts_[at];
    uint64_t end = at + 1;
    while (end < to && verdicts_[end] == verdict) ++end;
    if (verdict == Verdict::kEvict) {
      batch.used += moveOut({first + at, PageCount(end - at)}, segment);
    } else if (verdict == Verdict::kProbe) {
      arm(first, at, end);
    }
    at = end;
  }
  hand_ = first + to;
}

uint64_t Evictor::judge(PageIndex first, uint64_t at, uint64_t room, Choice choice) {
  const bool plain =
      core_.space->protections().plain(core_.space->addressOf(first), Bytes(kGranuleSize));
  MutexLock lock(policy_.mutex());
  uint64_t chosen = 0;
  uint64_t written = 0;
  for (; at < kPagesPerGranule && chosen < room; ++at) {
    const PageWord word = core_.space->word(first + at);
    verdicts_[at] = Verdict::kKeep;
    // Pages with a home in a direct tier go there (see Balancer), not through staging.
    if (word.state() != PageState::kLocal || word.has(kFlagShadow)) continue;
    if (rightsOf(first + at, plain) == Rights::kOther) continue;
    WriteBit bit = WriteBit::kNotArmed;
    if (word.has(kFlagProbed)) {
      bit = written_[at] ? WriteBit::kWritten : WriteBit::kClean;
      if (written_[at]) {
        core_.space->change(first + at, word, word.without(kFlagProbed));
        ++written;
      }
    }
    verdicts_[at] =
        choice == Choice::kAnything ? Verdict::kEvict : policy_.chooser().classify(first + at, bit);
    if (verdicts_[at] == Verdict::kEvict) ++chosen;
  }
  // The write faults that arming caused are the program's time: counted at their known cost, which
  // the policy charges itself.
  countSampling(kWriteFaultCost * written);
  return at;
}

void Evictor::readWritten(PageIndex first) {
  written_.reset();
  uint64_t armed = 0;
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    if (core_.space->word(first + i).has(kFlagProbed)) ++armed;
  }
  if (armed == 0) return;
  const Nanoseconds start = threadCpuTime();
  std::array<os::PageRun, 256> runs;
  uintptr_t at = core_.space->addressOf(first);
  const uintptr_t end = at + kGranuleSize;
  while (at < end) {
    uintptr_t walked = at;
    const auto found =
        os::scanWritten(pagemap_.get(), at, Bytes(end - at), runs.data(), runs.size(), &walked);
    if (!found || walked <= at) break;
    for (size_t i = 0; i < *found; ++i) {
      const uint64_t from = core_.space->pageAt(runs[i].start) - first;
      const uint64_t to = from + ((runs[i].end - runs[i].start) >> kPageShift);
      for (uint64_t page = from; page < to; ++page) written_.set(page);
    }
    at = walked;
  }
  const Nanoseconds asking = threadCpuTime() - start;
  chargePolicy(asking);
  count(source_->count, armed);
  countSampling(asking);
}

void Evictor::countSampling(Nanoseconds spent) {
  count(source_->cpu_nanoseconds, spent.value());
  count(core_.stats->sampling_cpu_nanoseconds, spent.value());
}

void Evictor::arm(PageIndex first, uint64_t from, uint64_t to) {
  // Where the kernel does not resolve tracked writes itself, each would be a fault for the service.
  if (!core_.port->tracksWrites()) return;
  const Nanoseconds start = threadCpuTime();
  const Bytes size((to - from) * kPageSize);
  if (core_.port->writeProtect(core_.space->addressOf(first + from), size, Wake::kNo)) {
    for (uint64_t at = from; at < to; ++at) {
      const PageWord word = core_.space->word(first + at);
      if (word.state() == PageState::kLocal) {
        core_.space->change(first + at, word, word.with(kFlagProbed));
      }
    }
  }
  const Nanoseconds spent = threadCpuTime() - start;
  chargePolicy(spent);
  countSampling(spent);
}

void Evictor::chargePolicy(Nanoseconds cost) {
  MutexLock lock(policy_.mutex());
  policy_.chooser().chargeProbes(cost);
}

Rights Evictor::rightsOf(PageIndex page, bool granule_plain) const {
  return granule_plain ? Rights::kReadWrite
                       : core_.space->protections().at(core_.space->addressOf(page));
}

uint64_t Evictor::moveRun(PageRun run, Rights rights, uint64_t slot) {
  if (rights == Rights::kOther) return 0;
  if (!core_.port->canMove()) return moveByCopy(run, slot);
  if (rights == Rights::kReadOnly) return moveReadOnly(run, slot);
  const PortResult result = moveOutOfSpace(core_, staging_.slotAddress(slot),
                                           core_.space->addressOf(run.first), toBytes(run.count));
  return toPages(result.done).value();
}

uint64_t Evictor::moveOut(PageRun run, uint64_t segment) {
  Batch& batch = batches_[segment];
  const bool plain = core_.space->protections().plain(
      core_.space->addressOf(granuleOf(run.first)), Bytes(kGranuleSize));
  uint64_t moved_in_all = 0;
  for (uint64_t at = 0; at < run.count.value();) {
    if (core_.space->word(run.first + at).state() != PageState::kLocal) {
      ++at;
      continue;
    }
    const Rights rights = rightsOf(run.first + at, plain);
    uint64_t length = 1;
    while (at + length < run.count.value() &&
           core_.space->word(run.first + at + length).state() == PageState::kLocal &&
           rightsOf(run.first + at + length, plain) == rights) {
      ++length;
    }
    const PageRun part{run.first + at, PageCount(length)};
    const uint64_t slot = staging_.firstSlot(segment) + batch.used + moved_in_all;
    const uint64_t moved = moveRun(part, rights, slot);
    for (uint64_t i = 0; i < moved; ++i) {
      const PageIndex page = part.first + i;
      TP_CHECK(core_.space->change(page, core_.space->word(page),
                                   PageWord(PageState::kEvicting, 0, 0, slot + i)));
      batch.pages[batch.used + moved_in_all + i] = page;
    }
    moved_in_all += moved;
    // A page that did not move is pinned or gone: leave it and go on behind it.
    at += moved < length ? moved + 1 : length;
  }
  in_flight_ += PageCount(moved_in_all);
  return moved_in_all;
}

uint64_t Evictor::moveByCopy(PageRun run, uint64_t slot) {
  const uintptr_t from = core_.space->addressOf(run.first);
  const Bytes size = toBytes(run.count);
  if (!core_.port->writeProtect(from, size, Wake::kNo)) return 0;
  // Through the kernel, which returns an error where a load would wait for this very service.
  const iovec to{staging_.slotMemory(slot), size.value()};
  const iovec source{reinterpret_cast<void*>(from), size.value()};
  const ssize_t got = process_vm_readv(getpid(), &to, 1, &source, 1, 0);
  const uint64_t pages = got > 0 ? static_cast<uint64_t>(got) >> kPageShift : 0;
  if (pages > 0) {
    [[maybe_unused]] const Status freed = os::discard(from, toBytes(PageCount(pages)));
  }
  [[maybe_unused]] const Status open = core_.port->writeProtect(from, size, Wake::kYes);
  core_.port->wake(from, size);
  return pages;
}

uint64_t Evictor::moveReadOnly(PageRun run, uint64_t slot) {
  // UFFDIO_MOVE refuses them. Nothing can write to them while the granule's lock is held, but for
  // devices that were given them before they became read-only.
  if (os::mayPinPages()) return 0;
  uint64_t moved = 0;
  while (moved < run.count.value()) {
    const uintptr_t from = core_.space->addressOf(run.first + moved);
    const uint64_t wanted = std::min(kClusterPages, run.count.value() - moved);
    const iovec to{bounce_.data(), wanted * kPageSize};
    const iovec source{reinterpret_cast<void*>(from), wanted * kPageSize};
    const ssize_t got = process_vm_readv(getpid(), &to, 1, &source, 1, 0);
    const uint64_t pages = got > 0 ? static_cast<uint64_t>(got) >> kPageShift : 0;
    if (pages == 0) break;
    const PortResult copied = copyAll(*core_.port, staging_.slotAddress(slot + moved),
                                      bounce_.data(), toBytes(PageCount(pages)), Wake::kNo);
    if (copied.outcome != PortOutcome::kDone) break;
    if (!os::discard(from, toBytes(PageCount(pages)))) break;
    moved += pages;
    if (pages < wanted) break;
  }
  return moved;
}

bool Evictor::allocateFrames(Batch& batch) {
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    FetchTier* tier = core_.tiers.fetch(number);
    if (tier == nullptr || channels_[number] == nullptr) continue;
    uint64_t have = 0;
    while (have < batch.used) {
      const auto run = tier->allocate(PageCount(batch.used - have));
      if (!run) break;
      for (uint64_t i = 0; i < run->count.value(); ++i) batch.frames[have++] = run->first + i;
    }
    if (have == batch.used) {
      batch.tier = number;
      return true;
    }
    for (uint64_t i = 0; i < have; ++i) tier->release({batch.frames[i], PageCount(1)});
  }
  return false;
}

void Evictor::write(uint64_t segment) {
  Batch& batch = batches_[segment];
  if (!allocateFrames(batch)) {
    usable_ = false;
    putBack(segment);
    core_.far_exhausted.store(true, std::memory_order_relaxed);
    reportError(core_,
                "far memory is full: the local budget will be exceeded; give more with "
                "--far or a larger SIZE");
    return;
  }
  FetchChannel& channel = *channels_[batch.tier];
  for (uint64_t at = 0; at < batch.used;) {
    uint64_t run = 1;
    while (at + run < batch.used && batch.frames[at + run] == batch.frames[at] + run) ++run;
    const Status sent = channel.submitWrite(tagOf(segment, at), {batch.frames[at], PageCount(run)},
                                            staging_.slotMemory(staging_.firstSlot(segment) + at));
    if (sent) {
      ++batch.writes_left;
    } else {
      batch.failed = true;
    }
    at += run;
  }
  [[maybe_unused]] const Status flushed = channel.flush();
  if (batch.writes_left == 0) finish(segment);
}

void Evictor::advance() {
  std::array<FetchCompletion, 64> completions;
  for (const auto& channel : channels_) {
    if (channel == nullptr || channel->inFlight() == 0) continue;
    for (;;) {
      const size_t got = channel->poll(completions);
      for (size_t i = 0; i < got; ++i) {
        const uint64_t segment = completions[i].tag >> 32;
        Batch& batch = batches_[segment];
        TP_CHECK(batch.writes_left > 0);
        if (!completions[i].ok()) batch.failed = true;
        if (--batch.writes_left > 0) continue;
        finish(segment);
      }
      if (got < completions.size()) break;
    }
  }
}

void Evictor::finish(uint64_t segment) {
  Batch& batch = batches_[segment];
  if (batch.failed) {
    if (usable_) {
      reportError(core_,
                  "cannot write to far memory %s: pages stay local and the local budget will be "
                  "exceeded",
                  core_.tiers.tier(batch.tier).name());
    }
    usable_ = false;
    core_.far_exhausted.store(true, std::memory_order_relaxed);
    putBack(segment);
    return;
  }
  batch.written_as = ++batches_written_;
}

bool Evictor::recycle() {
  uint64_t segment = kNoSegment;
  for (uint64_t i = 0; i < Staging::kSegments; ++i) {
    const uint64_t age = batches_[i].written_as;
    if (age != 0 && (segment == kNoSegment || age < batches_[segment].written_as)) segment = i;
  }
  if (segment == kNoSegment) return false;
  Batch& batch = batches_[segment];
  uint64_t written = 0;
  for (uint64_t i = 0; i < batch.used; ++i) {
    const PageIndex page = batch.pages[i];
    const PageWord evicting(PageState::kEvicting, 0, 0, staging_.firstSlot(segment) + i);
    const PageWord far(PageState::kFar, 0, batch.tier, batch.frames[i].value());
    MutexLock lock(core_.space->lockOf(granuleOf(page)));
    if (core_.space->change(page, evicting, far)) {
      ++written;
    } else {
      core_.tiers.tier(batch.tier).release({batch.frames[i], PageCount(1)});
    }
  }
  count(core_.stats->demotions, written);
  count(core_.stats->demoted_bytes, written * kPageSize);
  empty(segment);
  return true;
}

void Evictor::empty(uint64_t segment) {
  Batch& batch = batches_[segment];
  staging_.recycle(segment, PageCount(batch.used));
  core_.budget.discharge(PageCount(batch.used));
  in_flight_ -= PageCount(batch.used);
  batch.used = 0;
  batch.failed = false;
  batch.written_as = 0;
}

void Evictor::putBack(uint64_t segment) {
  Batch& batch = batches_[segment];
  for (uint64_t i = 0; i < batch.used; ++i) {
    const PageIndex page = batch.pages[i];
    const uint64_t slot = staging_.firstSlot(segment) + i;
    const PageWord evicting(PageState::kEvicting, 0, 0, slot);
    MutexLock lock(core_.space->lockOf(granuleOf(page)));
    if (core_.space->word(page) != evicting) continue;
    const PortResult back = copyAll(*core_.port, core_.space->addressOf(page),
                                    staging_.slotMemory(slot), Bytes(kPageSize), Wake::kYes);
    // Anything else means that the program unmapped the page under us: then nobody misses it.
    const PageState now =
        back.outcome == PortOutcome::kDone ? PageState::kLocal : PageState::kEmpty;
    core_.space->change(page, evicting, PageWord(now, 0, 0, 0));
    if (now == PageState::kLocal) core_.budget.charge(PageCount(1));
  }
  empty(segment);
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
