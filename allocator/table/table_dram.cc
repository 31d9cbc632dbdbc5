// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: what it costs in local memory, and how it is held to its budget: buffers of the
// link take an eighth, up to what does any good, and what is fixed; slots have the rest.
#include <algorithm>

#include "allocator/table/table.h"
#include "runtime/base/check.h"

namespace tidepool {
namespace {

constexpr uint64_t kLeastSlots = 16;
// Of what is not fixed. Requests that are under way hide the round trip; slots save requests.
constexpr uint64_t kLinkShare = 8;

Bytes fixedOf(const TableOptions& options) {
  return options.ids == IdKind::kHashed ? IdMap::memoryFor(options.rows) : Bytes();
}

uint64_t leastSlots(const TableOptions& options) {
  return std::min<uint64_t>(kLeastSlots, options.rows);
}

/// Slots and link, of which planDram() makes at least so many slots.
Bytes variableFor(const RowFormat& format, TierKind tier, uint64_t slots) {
  const Bytes cache = RowCache::memoryFor(format, slots);
  if (tier != TierKind::kFetch) return cache;
  const Bytes share((cache.value() + kLinkShare - 2) / (kLinkShare - 1));
  const Bytes least = RowLink::leastMemory(Bytes(format.stride()));
  return cache + std::max(least, std::min(share, RowLink::kMostMemory));
}

}  // namespace

Bytes EmbeddingTable::dramFor(const TableOptions& options, TierKind tier, uint64_t slots) {
  if (tier == TierKind::kLocal) return {};
  slots = std::clamp(slots, leastSlots(options), options.rows);
  return std::max(leastDram(options, tier),
                  fixedOf(options) + variableFor(options.format, tier, slots));
}

/// What the first checkpoint will take is asked for at once, though slots have it until then: who
/// has trained for hours is not to learn that the rows cannot be saved.
Bytes EmbeddingTable::leastDram(const TableOptions& options, TierKind tier) {
  if (tier == TierKind::kLocal) return {};
  return fixedOf(options) + variableFor(options.format, tier, leastSlots(options)) +
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
  return fixedDram() + variableFor(format_, home_->kind(), slots);
}

Bytes EmbeddingTable::fixedDram() const {
  Bytes fixed = fixedOf(options_);
  if (room_for_changes_) fixed += RowChanges::mostMemory(options_.rows);
  if (curve_) fixed += LiveCurve::memoryFor(home_->size());
  return fixed;
}

/// What it costs at the most, as it is.
Bytes EmbeddingTable::heldDram() const {
  Bytes held = fixedDram() + RowCache::memoryFor(format_, cache_->capacity());
  if (fetches()) held += home_->link()->memory();
  return held;
}

uint64_t EmbeddingTable::mostSlots() const {
  return std::min<uint64_t>(options_.rows, kNoSlot - 1);
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
  Bytes rest = dram - fixedDram();
  if (fetches()) {
    const Bytes most = rest - RowCache::memoryFor(format_, leastSlots(options_));
    plan.link = std::max(std::min(rest / kLinkShare, RowLink::kMostMemory),
                         RowLink::leastMemory(Bytes(format_.stride())));
    plan.link = std::min(plan.link, most);
    rest -= plan.link;
  }
  plan.slots = static_cast<Slot>(RowCache::slotsIn(format_, rest, mostSlots()));
  return plan;
}

Status EmbeddingTable::setUpCache() {
  if (shared_ != nullptr) curve_ = std::make_unique<LiveCurve>(options_.rows, home_->size());
  const auto plan = planDram(options_.dram);
  if (!plan) return tl::unexpected(plan.error());
  if (fetches()) TP_TRY(home_->link()->setMemory(plan->link));
  // Address space for more only where there may be more: not every system gives it for nothing.
  const uint64_t most = shared_ != nullptr ? mostSlots() : plan->slots;
  auto cache = RowCache::create(format_, *home_, plan->slots, static_cast<Slot>(most));
  if (!cache) return tl::unexpected(cache.error());
  cache_ = std::move(*cache);
  dram_ = options_.dram;
  return {};
}

/// Errors: kInvalidArgument with nothing changed; others break the table.
Status EmbeddingTable::fitDram(Bytes dram) {
  auto plan = planDram(dram);
  if (!plan) return tl::unexpected(plan.error());
  plan->slots = std::min(plan->slots, cache_->most());
  Status done;
  if (staged_) staged_->clear();
  // Rows that are on their way to slots would have to be told where those went.
  while (done && !ahead_.empty()) done = settleOldest();
  if (done) done = cache_->setCapacity(plan->slots);
  if (done && fetches() && plan->link != home_->link()->memory()) {
    done = home_->link()->finishAll();
    if (done) done = home_->link()->setMemory(plan->link);
  }
  if (!done) return broken(done.error());
  dram_ = std::max(dram, heldDram());
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
/// at the most. Slots make room, once.
Status EmbeddingTable::makeRoomForChanges() {
  if (!cache_ || room_for_changes_) return {};
  const Bytes budget = dram_;
  room_for_changes_ = true;
  Status fitted = fitDram(budget);
  if (fitted && dram_ > budget) {
    fitted = fail(ErrorCode::kConflict,
                  "table %s: rows of announced batches have the local memory that a checkpoint "
                  "needs; finish those batches first",
                  options_.name.c_str());
  }
  if (fitted || broken_) return fitted;
  room_for_changes_ = false;
  TP_TRY(fitDram(budget));
  return fitted;
}

TableCounts EmbeddingTable::counts() {
  MutexLock lock(mutex_);
  TableCounts counts = counts_;
  counts.hits = hits_.load(std::memory_order_relaxed);
  counts.in_place = in_place_.load(std::memory_order_relaxed);
  counts.steps = step_.step;
  counts.metadata += changes_.memory();
  if (options_.ids == IdKind::kHashed) counts.metadata += ids_.memory();
  if (curve_) counts.metadata += LiveCurve::memoryFor(home_->size());
  if (cache_) {
    counts.evictions = cache_->evictions();
    counts.written_back = cache_->writtenBack();
    counts.metadata += cache_->metadata();
    counts.dram += Bytes(uint64_t{cache_->capacity()} * format_.stride());
  } else {
    counts.dram += home_->size();
  }
  counts.dram += counts.metadata;
  if (fetches()) counts.dram += home_->link()->memory();
  return counts;
}

}  // namespace tidepool
