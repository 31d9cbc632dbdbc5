// SPDX-License-Identifier: Apache-2.0
// DramPlan: sums.
#include "allocator/table/dram_plan.h"

#include <algorithm>

#include "allocator/table/prefetch_buffer.h"
#include "allocator/table/row_cache.h"
#include "allocator/table/row_changes.h"
#include "allocator/table/row_link.h"
#include "allocator/table/table_ids.h"
#include "allocator/table/unwritten_rows.h"
#include "runtime/base/check.h"

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

uint64_t possible(const TableOptions& options, uint64_t slots) {
  return std::clamp(slots, leastSlots(options), options.rows);
}

Bytes leastLink(const RowFormat& format) {
  return RowLink::leastMemory(Bytes(format.stride())) +
         PrefetchBuffer::memoryFor(RowLink::kLeastRowsInAll);
}

/// Slots and link, of which divide() makes at least so many slots.
Bytes variableFor(const RowFormat& format, TierKind tier, uint64_t slots) {
  const Bytes cache = RowCache::memoryFor(format, slots);
  if (tier != TierKind::kFetch) return cache;
  const Bytes share((cache.value() + kLinkShare - 2) / (kLinkShare - 1));
  return cache + std::max(leastLink(format), std::min(share, RowLink::kMostMemory));
}

}  // namespace

Bytes DramPlan::ofRows(const TableOptions& options, TierKind tier) {
  if (options.ids == IdKind::kHashed) return TableIds::memoryFor(options);
  return tier == TierKind::kFetch ? UnwrittenRows::memoryFor(options.rows) : Bytes();
}

Bytes DramPlan::forSlots(const TableOptions& options, TierKind tier, uint64_t slots) {
  if (tier == TierKind::kLocal) return {};
  return std::max(
      least(options, tier),
      ofRows(options, tier) + variableFor(options.format, tier, possible(options, slots)));
}

/// What the first checkpoint will take is asked for at once, though slots have it until then: who
/// has trained for hours is not to learn that the rows cannot be saved.
Bytes DramPlan::least(const TableOptions& options, TierKind tier) {
  if (tier == TierKind::kLocal) return {};
  return ofRows(options, tier) + variableFor(options.format, tier, leastSlots(options)) +
         RowChanges::mostMemory(options.rows);
}

Bytes DramPlan::least() const {
  const Bytes least = forSlots(0);
  return reserves_changes_ ? least : least + RowChanges::mostMemory(options_.rows);
}

Bytes DramPlan::forSlots(uint64_t slots) const {
  return fixed() + variableFor(options_.format, tier_, possible(options_, slots));
}

Bytes DramPlan::forAhead(uint64_t rows) const {
  const uint64_t share = rows * (options_.format.stride() + kBesideRow) * 5 / 3;
  const Bytes saving = reserves_changes_ ? Bytes() : RowChanges::mostMemory(options_.rows);
  return fixed() + saving + Bytes(share * kAheadShare);
}

Bytes DramPlan::fixed() const {
  Bytes fixed = ofRows(options_, tier_) + curve_;
  if (reserves_changes_) fixed += RowChanges::mostMemory(options_.rows);
  return fixed;
}

uint64_t DramPlan::mostSlots(const TableOptions& options) {
  return std::min<uint64_t>(options.rows, kNoSlot - 1 - PrefetchBuffer::kMostPlaces);
}

Result<DramPlan::Division> DramPlan::divide(Bytes dram, const std::optional<Division>& held) const {
  const Bytes needed = least();
  if (dram < needed) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s: %llu bytes of DRAM hold too few rows and what belongs to them; give it "
                "%llu bytes or more",
                options_.name.c_str(), static_cast<unsigned long long>(dram.value()),
                static_cast<unsigned long long>(needed.value()));
  }
  Division division;
  TP_CHECK(fixed() <= dram);
  Bytes rest = dram - fixed();
  if (fetches()) {
    const RowFormat& format = options_.format;
    const Bytes most = rest - RowCache::memoryFor(format, leastSlots(options_));
    const Bytes share = announces_ ? std::min(rest / kAheadShare, kMostAhead)
                                   : std::min(rest / kLinkShare, RowLink::kMostMemory);
    division = held ? *held : divideLink(std::min(std::max(share, leastLink(format)), most));
    rest -= std::min(most, division.link + division.prefetched);
  }
  division.slots = static_cast<Slot>(RowCache::slotsIn(options_.format, rest, mostSlots(options_)));
  return division;
}

/// Chunks, and what is known of the rows in them that wait for their batch.
DramPlan::Division DramPlan::divideLink(Bytes share) const {
  Division division;
  division.link = share;
  if (!announces_) return division;
  const Bytes stride(options_.format.stride());
  division.prefetched_rows = share.value() / (stride.value() + kBesideRow);
  if (PrefetchBuffer::memoryFor(division.prefetched_rows) + RowLink::leastMemory(stride) > share) {
    division.prefetched_rows = RowLink::kLeastRowsInAll;
  }
  division.prefetched = PrefetchBuffer::memoryFor(division.prefetched_rows);
  division.link = share - division.prefetched;
  return division;
}

}  // namespace tidepool
