// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: how it is held to its budget (DramPlan says how that is divided).
#include <algorithm>

#include "allocator/table/table.h"
#include "runtime/base/check.h"

namespace tidepool {

/// What it costs at the most, as it is.
Bytes EmbeddingTable::heldDram() const {
  Bytes held = plan_.fixed() + RowCache::memoryFor(format_, cache_->capacity());
  if (fetches()) held += backing_->link()->memory() + prefetched_->memory();
  return held;
}

/// Rows of batches in flight stay where they are.
Result<DramPlan::Division> EmbeddingTable::divide(Bytes dram) const {
  std::optional<DramPlan::Division> held;
  if (prefetched_ && !prefetched_->empty()) {
    held.emplace();
    held->link = backing_->link()->memory();
    held->prefetched = prefetched_->memory();
  }
  return plan_.divide(dram, held);
}

/// From the first announced batch on. What a checkpoint takes is put aside as well: later it could
/// not be, since slots that announced rows are in cannot be given up, and in a loop that looks
/// ahead there is no moment without any.
Status EmbeddingTable::makeRoomAhead() {
  plan_.setAnnounces(true);
  plan_.reserveChanges();
  return fitDram(dram_);
}

Status EmbeddingTable::setUpCache() {
  if (shared_ != nullptr) curve_ = std::make_unique<LiveCurve>(options_.rows, backing_->size());
  const auto plan = divide(options_.dram);
  if (!plan) return tl::unexpected(plan.error());
  if (fetches()) TP_TRY(backing_->link()->setMemory(plan->link));
  // Address space for more only where there may be more: not every system gives it for nothing.
  const uint64_t most = shared_ != nullptr ? DramPlan::mostSlots(options_) : plan->slots;
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
  auto plan = divide(dram);
  if (!plan) return tl::unexpected(plan.error());
  plan->slots = std::min(plan->slots, cache_->most());
  // The share of rows that wait follows when none waits: until then no more are asked for.
  refit_ = fetches() && !prefetched_->empty() && (dram != dram_ || refit_);
  Status done;
  if (staged_) staged_->clear();
  batches_.forgetPlaces();
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
  return cache_ && plan_.reserveChanges() ? fitDram(dram_) : Status();
}

TableCounts EmbeddingTable::counts() {
  MutexLock lock(mutex_);
  return countsLocked();
}

TableCounts EmbeddingTable::countsLocked() const {
  TableCounts counts = counts_;
  counts.hits = hits_.load(std::memory_order_relaxed);
  counts.in_place = in_place_.load(std::memory_order_relaxed);
  counts.steps = step_.number();
  counts.metadata += changes_.memory();
  counts.metadata += ids_.memory();
  if (!ids_.hashed()) counts.metadata += DramPlan::ofRows(options_, backing_->kind());
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
