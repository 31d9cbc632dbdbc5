// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: what it costs in local memory, and how it is held to its budget: buffers of the
// link take an eighth, up to what does any good, and what is fixed; slots have the rest.
#include <algorithm>

#include "allocator/table/table.h"
#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

constexpr uint64_t kLeastSlots = 16;
// Of what is not fixed. Requests that are under way hide the round trip; slots save requests.
constexpr uint64_t kLinkShare = 8;
// Of a table whose batches are announced: rows wait for a batch or two. A slot saves more requests
// than it takes, up to the point where requests have to wait for room.
constexpr uint64_t kAheadShare = 4;
constexpr Bytes kMostAhead = Bytes(64 * kMiB);
// What is known of a row that waits, and little less than its share of what requests may hold.
constexpr uint64_t kBesideRow = 24;

uint64_t leastSlots(const TableOptions& options) {
  return std::min<uint64_t>(kLeastSlots, options.rows);
}

Bytes leastLink(const RowFormat& format) {
  return RowLink::leastMemory(Bytes(format.stride())) +
         PrefetchBuffer::memoryFor(RowLink::kLeastRowsInAll);
}

/// Slots and link, of which planDram() makes at least so many slots.
Bytes variableFor(const RowFormat& format, TierKind tier, uint64_t slots) {
  const Bytes cache = RowCache::memoryFor(format, slots);
  if (tier != TierKind::kFetch) return cache;
  const Bytes share((cache.value() + kLinkShare - 2) / (kLinkShare - 1));
  return cache + std::max(leastLink(format), std::min(share, RowLink::kMostMemory));
}

}  // namespace

/// What is known of rows wherever they are.
Bytes EmbeddingTable::rowsMemory(const TableOptions& options, TierKind tier) {
  if (options.ids == IdKind::kHashed) return TableIds::memoryFor(options);
  return tier == TierKind::kFetch ? UnwrittenRows::memoryFor(options.rows) : Bytes();
}

Bytes EmbeddingTable::dramFor(const TableOptions& options, TierKind tier, uint64_t slots) {
  if (tier == TierKind::kLocal) return {};
  slots = std::clamp(slots, leastSlots(options), options.rows);
  return std::max(leastDram(options, tier),
                  rowsMemory(options, tier) + variableFor(options.format, tier, slots));
}

/// What the first checkpoint will take is asked for at once, though slots have it until then: who
/// has trained for hours is not to learn that the rows cannot be saved.
Bytes EmbeddingTable::leastDram(const TableOptions& options, TierKind tier) {
  if (tier == TierKind::kLocal) return {};
  return rowsMemory(options, tier) + variableFor(options.format, tier, leastSlots(options)) +
         RowChanges::mostMemory(options.rows);
}

/// The same for this table, as it is.
Bytes EmbeddingTable::leastDram() const {
  const Bytes least = dramFor(uint64_t{0});
  return room_for_changes_ ? least : least + RowChanges::mostMemory(options_.rows);
}

/// With so many slots, of this table as it is.
Bytes EmbeddingTable::dramFor(uint64_t slots) const {
  slots = std::clamp(slots, leastSlots(options_), options_.rows);
  return fixedDram() + variableFor(format_, backing_->kind(), slots);
}

/// With which so many rows have room to wait, about, also when the table has been saved: some of
/// what requests hold is for others.
Bytes EmbeddingTable::dramForAhead(uint64_t rows) const {
  const uint64_t share = rows * (format_.stride() + kBesideRow) * 5 / 3;
  const Bytes saving = room_for_changes_ ? Bytes() : RowChanges::mostMemory(options_.rows);
  return fixedDram() + saving + Bytes(share * kAheadShare);
}

Bytes EmbeddingTable::fixedDram() const {
  Bytes fixed = rowsMemory(options_, backing_->kind());
  if (room_for_changes_) fixed += RowChanges::mostMemory(options_.rows);
  if (curve_) fixed += LiveCurve::memoryFor(backing_->size());
  return fixed;
}

/// What it costs at the most, as it is.
Bytes EmbeddingTable::heldDram() const {
  Bytes held = fixedDram() + RowCache::memoryFor(format_, cache_->capacity());
  if (fetches()) held += backing_->link()->memory() + prefetched_->memory();
  return held;
}

uint64_t EmbeddingTable::mostSlots() const {
  return std::min<uint64_t>(options_.rows, kNoSlot - 1 - PrefetchBuffer::kMostPlaces);
}

Result<EmbeddingTable::DramPlan> EmbeddingTable::planDram(Bytes dram) const {
  const Bytes least = leastDram();
  if (dram < least) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s: %llu bytes of DRAM hold too few rows and what belongs to them; give it "
                "%llu bytes or more",
                options_.name.c_str(), static_cast<unsigned long long>(dram.value()),
                static_cast<unsigned long long>(least.value()));
  }
  DramPlan plan;
  TP_CHECK(fixedDram() <= dram);
  Bytes rest = dram - fixedDram();
  if (fetches()) {
    const Bytes most = rest - RowCache::memoryFor(format_, leastSlots(options_));
    const Bytes share = announces_ ? std::min(rest / kAheadShare, kMostAhead)
                                   : std::min(rest / kLinkShare, RowLink::kMostMemory);
    planLink(std::min(std::max(share, leastLink(format_)), most), plan);
    rest -= std::min(most, plan.link + plan.prefetched);
  }
  plan.slots = static_cast<Slot>(RowCache::slotsIn(format_, rest, mostSlots()));
  return plan;
}

/// Chunks, and what is known of the rows in them that wait for their batch. Those of batches in
/// flight stay as they are.
void EmbeddingTable::planLink(Bytes share, DramPlan& plan) const {
  if (prefetched_ && !prefetched_->empty()) {
    plan.link = backing_->link()->memory();
    plan.prefetched = prefetched_->memory();
    return;
  }
  plan.prefetched_rows = 0;
  plan.link = share;
  if (!announces_) return;
  const Bytes least = RowLink::leastMemory(Bytes(format_.stride()));
  plan.prefetched_rows = share.value() / (format_.stride() + kBesideRow);
  if (PrefetchBuffer::memoryFor(plan.prefetched_rows) + least > share) {
    plan.prefetched_rows = RowLink::kLeastRowsInAll;
  }
  plan.prefetched = PrefetchBuffer::memoryFor(plan.prefetched_rows);
  plan.link = share - plan.prefetched;
}

/// From the first announced batch on. What a checkpoint takes is put aside as well: later it could
/// not be, since slots that announced rows are in cannot be given up, and in a loop that looks
/// ahead there is no moment without any.
Status EmbeddingTable::makeRoomAhead() {
  announces_ = true;
  room_for_changes_ = true;
  return fitDram(dram_);
}

Status EmbeddingTable::setUpCache() {
  if (shared_ != nullptr) curve_ = std::make_unique<LiveCurve>(options_.rows, backing_->size());
  const auto plan = planDram(options_.dram);
  if (!plan) return tl::unexpected(plan.error());
  if (fetches()) TP_TRY(backing_->link()->setMemory(plan->link));
  // Address space for more only where there may be more: not every system gives it for nothing.
  const uint64_t most = shared_ != nullptr ? mostSlots() : plan->slots;
  auto cache =
      RowCache::create(format_, *backing_, options_.rows, plan->slots, static_cast<Slot>(most));
  if (!cache) return tl::unexpected(cache.error());
  cache_ = std::move(*cache);
  if (fetches()) {
    const Bytes stride(format_.stride());
    prefetched_ = std::make_unique<PrefetchBuffer>(*backing_->link(), *cache_, stride);
    staged_ = std::make_unique<StagedRows>(*backing_->link(), stride);
  }
  dram_ = options_.dram;
  return {};
}

/// Errors: kInvalidArgument with nothing changed; others break the table.
Status EmbeddingTable::fitDram(Bytes dram) {
  // Of batches that are over nothing need be kept.
  if (fetches()) {
    const Status absorbed = absorb();
    if (!absorbed) return broken(absorbed.error());
  }
  auto plan = planDram(dram);
  if (!plan) return tl::unexpected(plan.error());
  plan->slots = std::min(plan->slots, cache_->most());
  // The share of rows that wait follows when none waits: until then no more are asked for.
  refit_ = fetches() && !prefetched_->empty() && (dram != dram_ || refit_);
  Status done;
  if (staged_) staged_->clear();
  replan();
  done = cache_->setCapacity(plan->slots);
  if (done && fetches() && prefetched_->empty() &&
      (plan->link != backing_->link()->memory() || plan->prefetched != prefetched_->memory())) {
    done = cache_->sendWriteBack();
    if (done) done = backing_->link()->finishAll();
    if (done) done = backing_->link()->setMemory(plan->link);
    if (done) done = prefetched_->setMost(plan->prefetched_rows);
  }
  if (!done) return broken(done.error());
  dram_ = std::max(dram, heldDram());
  tellDram();
  return {};
}

Status EmbeddingTable::setDram(Bytes dram) {
  letOthersIn();
  MutexLock lock(mutex_);
  TP_TRY(usable());
  return cache_ ? fitDram(dram) : Status();
}

Bytes EmbeddingTable::dram() {
  MutexLock lock(mutex_);
  return dram_;
}

/// Before the first checkpoint: which rows have changed is known from then on, for three bits a row
/// at the most. Slots make room, once; none of their rows was announced, see makeRoomAhead().
Status EmbeddingTable::makeRoomForChanges() {
  if (!cache_ || room_for_changes_) return {};
  room_for_changes_ = true;
  return fitDram(dram_);
}

TableCounts EmbeddingTable::counts() {
  MutexLock lock(mutex_);
  return countsLocked();
}

TableCounts EmbeddingTable::countsLocked() const {
  TableCounts counts = counts_;
  counts.hits = hits_.load(std::memory_order_relaxed);
  counts.in_place = in_place_.load(std::memory_order_relaxed);
  counts.steps = step_.step;
  counts.metadata += changes_.memory();
  counts.metadata += ids_.memory();
  if (!ids_.hashed()) counts.metadata += rowsMemory(options_, backing_->kind());
  if (curve_) counts.metadata += LiveCurve::memoryFor(backing_->size());
  if (cache_) {
    counts.evictions = cache_->evictions();
    counts.written_back = cache_->writtenBack();
    counts.metadata += cache_->metadata();
    counts.dram += Bytes(uint64_t{cache_->capacity()} * format_.stride());
  } else {
    counts.dram += backing_->size();
  }
  counts.dram += counts.metadata;
  if (fetches()) {
    counts.prefetched = prefetched_->asked();
    counts.unwritten = backing_->link()->unwritten();
    counts.metadata += prefetched_->memory();
    counts.dram += backing_->link()->memory() + prefetched_->memory();
  }
  return counts;
}

}  // namespace tidepool
