// SPDX-License-Identifier: Apache-2.0
// Eviction to fetch tiers, from the staging segment on: frames, writes, limbo, and the way back
// when a write fails. Runs on the migrator's thread only.
#include "runtime/base/check.h"
#include "runtime/migrate/evict/evictor.h"

#include <algorithm>
#include <cstring>

namespace tidepool {
namespace {

/// A write's tag: segment and its first slot.
constexpr uint64_t tagOf(uint64_t segment, uint64_t slot) { return segment << 32 | slot; }

/// Of a page. Others differ soon, as a rule in the first word.
bool isZero(const std::byte* page) {
  uint64_t first;
  memcpy(&first, page, sizeof first);
  return first == 0 && memcmp(page, page + sizeof first, kPageSize - sizeof first) == 0;
}

}  // namespace

void Evictor::findZeros(uint64_t segment) {
  Batch& batch = batches_[segment];
  // Each is a miss in the processor's caches; so far ahead they overlap.
  constexpr uint64_t kAhead = 8;
  const std::byte* const memory = staging_.slotMemory(staging_.firstSlot(segment));
  for (uint64_t slot = 0; slot < batch.used; ++slot) {
    if (slot + kAhead < batch.used) __builtin_prefetch(memory + (slot + kAhead) * kPageSize);
    batch.zero[slot] = !batch.copied[slot] && isZero(memory + slot * kPageSize);
    if (batch.zero[slot]) batch.tiers[slot] = 0;
  }
}

bool Evictor::opens(uint8_t number) {
  FetchTier* const tier = core_.tiers.fetch(number);
  if (tier == nullptr || tier->closed()) return false;
  const auto channel = channels_.to(number);
  if (channel) return true;
  reportError(core_, "cannot write to far memory %s: %s", tier->name(), channel.error().text());
  tier->close();
  return false;
}

bool Evictor::allocateFrames(Batch& batch) {
  const SlotSet placed = allocatePlaced(batch);
  SlotSet rest;
  for (uint64_t slot = 0; slot < batch.used; ++slot) {
    rest[slot] = batch.writes(slot) && !placed[slot];
  }
  if (rest.none()) return true;
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    if (opens(number) && allocateFrom(number, batch, rest)) return true;
  }
  for (uint64_t slot = 0; slot < batch.used; ++slot) {
    if (!placed[slot]) continue;
    core_.tiers.tier(batch.tiers[slot]).release({batch.frames[slot], PageCount(1)});
  }
  return false;
}

Evictor::SlotSet Evictor::allocatePlaced(Batch& batch) {
  SlotSet placed;
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    SlotSet wanted;
    for (uint64_t slot = 0; slot < batch.used; ++slot) {
      wanted[slot] = batch.writes(slot) && placementOf(core_, batch.pages[slot]).tier() == number;
    }
    if (wanted.any() && opens(number) && allocateFrom(number, batch, wanted)) placed |= wanted;
  }
  return placed;
}

bool Evictor::allocateFrom(uint8_t number, Batch& batch, const SlotSet& slots) {
  Tier& tier = core_.tiers.tier(number);
  for (uint64_t slot = 0; slot < batch.used;) {
    if (!slots[slot]) {
      ++slot;
      continue;
    }
    // Neighbours come back together, so their frames should be in a row; those of others may be
    // anywhere, which leaves the long runs to neighbours.
    uint64_t alike = 1;
    while (slot + alike < batch.used && slots[slot + alike] &&
           batch.pages[slot + alike] == batch.pages[slot] + alike) {
      ++alike;
    }
    const auto run = tier.allocate(PageCount(alike));
    if (!run) {
      for (uint64_t i = 0; i < slot; ++i) {
        if (slots[i]) tier.release({batch.frames[i], PageCount(1)});
      }
      return false;
    }
    TP_CHECK_OP(run->count.value(), <=, alike);
    for (uint64_t i = 0; i < run->count.value(); ++i, ++slot) {
      batch.frames[slot] = run->first + i;
      batch.tiers[slot] = number;
    }
  }
  return true;
}

bool Evictor::anyOpen() const {
  bool any = false;
  core_.tiers.forEach([&](uint8_t number, const Tier& tier) {
    any = any || (core_.tiers.fetch(number) != nullptr && !tier.closed());
  });
  return any;
}

void Evictor::releaseFrames(Batch& batch) {
  for (uint64_t i = 0; i < batch.used; ++i) {
    if (!batch.writes(i)) continue;
    core_.tiers.tier(batch.tiers[i]).release({batch.frames[i], PageCount(1)});
  }
}

void Evictor::takeBack(uint8_t tier) {
  for (uint64_t segment = 0; segment < Staging::kSegments; ++segment) {
    Batch& batch = batches_[segment];
    if (batch.written_as == 0) continue;
    const auto end = batch.tiers.begin() + static_cast<ptrdiff_t>(batch.used);
    if (std::find(batch.tiers.begin(), end, tier) == end) continue;
    releaseFrames(batch);
    putBack(segment);
  }
}

bool Evictor::dropFarCopies() {
  uint64_t dropped = 0;
  for (PageIndex page; page < core_.space->highWater(); page = page + kPagesPerGranule) {
    if (!core_.space->hasLocal(granuleOf(page))) continue;
    const GranuleLock granule(*core_.space, granuleOf(page));
    for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
      const PageWord word = core_.space->word(page + i);
      if (dropFarCopy(core_, granule, page + i, word) != word) ++dropped;
    }
  }
  return dropped > 0;
}

void Evictor::compress(uint64_t segment) {
  if (pool_ == nullptr) return;
  Batch& batch = batches_[segment];
  // What is compressed takes memory before the pages give up theirs.
  while (core_.budget.room() < PageCount(batch.used / 2) && recycle()) {
  }
  for (uint64_t slot = 0; slot < batch.used; ++slot) {
    const PageIndex page = batch.pages[slot];
    if (batch.zero[slot] || placementOf(core_, page).tier() != 0) continue;
    const std::byte* const bytes = staging_.slotMemory(staging_.firstSlot(segment) + slot);
    const auto frame = batch.copied[slot] ? pool_->putClean(page, bytes) : pool_->put(page, bytes);
    if (!frame) continue;
    if (batch.copied[slot]) {
      core_.tiers.tier(batch.tiers[slot]).release({batch.frames[slot], PageCount(1)});
    }
    batch.frames[slot] = *frame;
    batch.tiers[slot] = core_.pool_number;
    batch.copied.set(slot);
    batch.packed.set(slot);
  }
}

void Evictor::write(uint64_t segment) {
  Batch& batch = batches_[segment];
  findZeros(segment);
  compress(segment);
  if (!allocateFrames(batch) && !(dropFarCopies() && allocateFrames(batch))) {
    usable_ = false;
    full_ = true;
    putBack(segment);
    return sayFull();
  }
  for (uint64_t at = 0; at < batch.used;) {
    at += batch.writes(at) ? submitFrom(segment, at) : 1;
  }
  // One page at least is written, again if need be: that a server is gone must show before pages
  // are given up that are only there.
  const SlotSet clean = batch.copied & ~batch.packed;
  const bool none = batch.writes_left == 0 && batch.failed_tier == 0;
  if (none && clean.any()) submitFrom(segment, clean._Find_first());
  for (const auto& channel : channels_) {
    if (channel != nullptr) [[maybe_unused]]
      const Status flushed = channel->flush();
  }
  if (batch.writes_left == 0) finish(segment);
}

static_assert(Staging::kSlotsPerSegment <= FetchChannel::kMostScattered, "one request a batch");

uint64_t Evictor::submitFrom(uint64_t segment, uint64_t at) {
  Batch& batch = batches_[segment];
  const uint8_t tier = batch.tiers[at];
  TP_CHECK(!batch.zero[at] && tier != 0 && tier != core_.pool_number);
  uint64_t slots = 1;
  bool in_a_run = true;
  for (; at + slots < batch.used && batch.writes(at) && batch.writes(at + slots) &&
         batch.tiers[at + slots] == tier;
       ++slots) {
    in_a_run = in_a_run && batch.frames[at + slots] == batch.frames[at] + slots;
  }
  // A page may have its frame in a tier that this batch has no channel to yet.
  const auto channel = channels_.to(tier);
  const std::byte* const memory = staging_.slotMemory(staging_.firstSlot(segment) + at);
  Status sent;
  if (!channel) {
    sent = tl::unexpected(channel.error());
  } else if (!batch.writes(at)) {
    sent = (*channel)->submitAgain(tagOf(segment, at), batch.frames[at], memory);
  } else if (in_a_run) {
    sent =
        (*channel)->submitWrite(tagOf(segment, at), {batch.frames[at], PageCount(slots)}, memory);
  } else {
    sent = (*channel)->submitWriteScattered(tagOf(segment, at), {&batch.frames[at], slots}, memory);
  }
  if (sent) {
    ++batch.writes_left;
  } else {
    batch.failed_tier = tier;
  }
  return slots;
}

void Evictor::spaceCame() {
  if (!full_ || !anyOpen()) return;
  full_ = false;
  usable_ = true;
  room_.setFarExhausted(false);
}

void Evictor::spaceWent() {
  if (!usable_ || anyOpen()) return;
  usable_ = false;
  full_ = true;
}

void Evictor::sayFull() {
  if (!full_ || !core_.tiers.hasFetch() || core_.room.growing() || core_.room.farExhausted())
    return;
  room_.setFarExhausted(true);
  if (!anyOpen()) return;  // who closed the last one has said why
  reportError(core_,
              "far memory is full: the local budget will be exceeded; give more with "
              "--far or a larger SIZE");
}

void Evictor::advance() {
  std::array<FetchCompletion, 64> completions;
  for (uint8_t tier = 1; tier <= core_.tiers.count(); ++tier) {
    FetchChannel* channel = channels_.ifOpen(tier);
    if (channel == nullptr || channel->inFlight() == 0) continue;
    for (;;) {
      const size_t got = channel->poll(completions);
      for (size_t i = 0; i < got; ++i) {
        if (completions[i].tag >= PoolKeeper::kFirstTag) {
          pool_->finish(completions[i]);
          continue;
        }
        const uint64_t segment = completions[i].tag >> 32;
        TP_CHECK_OP(segment, <, Staging::kSegments);
        Batch& batch = batches_[segment];
        TP_CHECK(batch.writes_left > 0);
        if (!completions[i].ok()) batch.failed_tier = tier;
        if (--batch.writes_left > 0) continue;
        finish(segment);
      }
      if (got < completions.size()) break;
    }
  }
}

void Evictor::finish(uint64_t segment) {
  Batch& batch = batches_[segment];
  for (uint64_t i = 0; i < batch.used && batch.failed_tier == 0; ++i) {
    if (!batch.zero[i] && core_.tiers.tier(batch.tiers[i]).forsaken(batch.frames[i])) {
      batch.failed_tier = batch.tiers[i];
    }
  }
  if (batch.failed_tier != 0) {
    Tier& tier = core_.tiers.tier(batch.failed_tier);
    const bool first = !tier.closed();
    tier.close();
    usable_ = anyOpen();
    if (first) {
      reportError(core_, "cannot write to far memory %s: %s", tier.name(),
                  usable_ ? "pages go elsewhere"
                          : "pages stay local and the local budget will be exceeded");
    }
    full_ = !usable_ && core_.tiers.moreMayCome();
    if (!usable_) room_.setFarExhausted(true);
    releaseFrames(batch);
    putBack(segment);
    return;
  }
  batch.written_as = ++batches_written_;
}

uint64_t Evictor::oldestWritten() const {
  uint64_t segment = kNoSegment;
  for (uint64_t i = 0; i < Staging::kSegments; ++i) {
    const uint64_t age = batches_[i].written_as;
    if (age != 0 && (segment == kNoSegment || age < batches_[segment].written_as)) segment = i;
  }
  return segment;
}

bool Evictor::recycle() {
  const uint64_t segment = oldestWritten();
  if (segment == kNoSegment) return false;
  Batch& batch = batches_[segment];
  uint64_t gone = 0;
  uint64_t clean = 0;
  uint64_t zero = 0;
  for (uint64_t i = 0; i < batch.used; ++i) {
    const PageIndex page = batch.pages[i];
    const PageWord evicting(PageState::kEvicting, 0, 0, staging_.firstSlot(segment) + i);
    const PageWord out =
        batch.zero[i] ? PageWord(PageState::kZero, 0, 0, 0)
                      : PageWord(PageState::kFar, 0, batch.tiers[i], batch.frames[i].value());
    const GranuleLock granule(*core_.space, granuleOf(page));
    if (core_.space->change(granule, page, evicting, out)) {
      ++gone;
      clean += batch.copied[i] && !batch.packed[i] ? 1 : 0;
      zero += batch.zero[i] ? 1 : 0;
    } else if (!batch.zero[i]) {
      core_.tiers.tier(batch.tiers[i]).release({batch.frames[i], PageCount(1)});
    }
  }
  count(core_.stats->demotions, gone);
  count(core_.stats->demoted_bytes, gone * kPageSize);
  count(core_.stats->clean_evictions, clean);
  count(core_.stats->zero_pages, zero);
  empty(segment);
  if (pool_ != nullptr) pool_->reserve();
  return true;
}

void Evictor::recycleStale() {
  for (;;) {
    const uint64_t oldest = oldestWritten();
    if (oldest == kNoSegment || batches_[oldest].written_as > stale_) break;
    recycle();
  }
  stale_ = batches_written_;
}

void Evictor::empty(uint64_t segment) {
  Batch& batch = batches_[segment];
  TP_CHECK_OP(batch.writes_left, ==, 0u);  // of memory that is given up here
  TP_CHECK(in_flight_ >= PageCount(batch.used));
  staging_.recycle(staging_.firstSlot(segment), PageCount(batch.used));
  core_.budget.discharge(PageCount(batch.used));
  in_flight_ -= PageCount(batch.used);
  batch.used = 0;
  batch.failed_tier = 0;
  batch.copied.reset();
  batch.zero.reset();
  batch.packed.reset();
  batch.written_as = 0;
}

void Evictor::putBack(uint64_t segment) {
  Batch& batch = batches_[segment];
  for (uint64_t i = 0; i < batch.used; ++i) {
    const PageIndex page = batch.pages[i];
    const uint64_t slot = staging_.firstSlot(segment) + i;
    const PageWord evicting(PageState::kEvicting, 0, 0, slot);
    if (batch.copied[i]) {
      core_.tiers.tier(batch.tiers[i]).release({batch.frames[i], PageCount(1)});
    }
    const GranuleLock granule(*core_.space, granuleOf(page));
    if (core_.space->word(page) != evicting) continue;
    const PortResult back = copyAll(*core_.port, core_.space->addressOf(page),
                                    staging_.slotMemory(slot), Bytes(kPageSize), Wake::kYes);
    // Anything else means that the program unmapped the page under us: then nobody misses it.
    const PageState now =
        back.outcome == PortOutcome::kDone ? PageState::kLocal : PageState::kEmpty;
    core_.space->change(granule, page, evicting, PageWord(now, 0, 0, 0));
    if (now == PageState::kLocal) core_.budget.charge(PageCount(1));
  }
  empty(segment);
}

}  // namespace tidepool
