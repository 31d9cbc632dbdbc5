// SPDX-License-Identifier: Apache-2.0
// RowCache: what it costs, and how it grows and shrinks. Address space is taken once for as many
// slots as there may ever be; the first ones of every array are in use, and what lies behind them
// is given back. So nothing has to be copied to another place, and growing cannot fail.
#include <algorithm>
#include <cstring>

#include "allocator/table/row_cache.h"
#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"

namespace tidepool {

RowCache::RowCache(const RowFormat& format, BackingStore& backing, Slot slots, Slot most)
    : stride_(format.stride()),
      row_bytes_(format.rowBytes()),
      backing_(backing),
      most_(most),
      capacity_(slots) {}

Result<std::unique_ptr<RowCache>> RowCache::create(const RowFormat& format, BackingStore& backing,
                                                   RowNumber rows, Slot slots, Slot most) {
  TP_CHECK_OP(slots, >, 0u);
  TP_CHECK_OP(slots, <=, most);
  TP_CHECK_OP(most, <, kNoSlot);
  static_assert(kRowLimit >> 32 < 1u << (8 - kHighShift));
  std::unique_ptr<RowCache> cache(new RowCache(format, backing, slots, most));
  const uint64_t n = most;
  const Bytes policy_size = RowPolicy::memoryFor(SlotCount(n));
  struct Part {
    HugeMemory* memory;
    Bytes size;
  };
  for (const Part& part :
       {Part{&cache->memory_, Bytes(n * format.stride())},
        Part{&cache->low_row_memory_, Bytes(n * sizeof(uint32_t))},
        Part{&cache->state_memory_, Bytes(n)}, Part{&cache->policy_memory_, policy_size}}) {
    auto memory = HugeMemory::allocate(part.size);
    if (!memory) return tl::unexpected(memory.error());
    *part.memory = std::move(*memory);
  }
  // Huge pages would be touched beyond what is in use: the policy's arrays lie side by side.
  if (slots < most) cache->policy_memory_.use(Bytes());
  cache->slots_ = cache->memory_.data();
  cache->low_rows_ = reinterpret_cast<uint32_t*>(cache->low_row_memory_.data());
  cache->states_ = reinterpret_cast<uint8_t*>(cache->state_memory_.data());
  auto map = SlotMap::create({.rows = rows, .slots = most, .most = most}, slots);
  if (!map) return tl::unexpected(map.error());
  cache->map_ = std::move(*map);
  RowPolicyConfig config;
  config.most = SlotCount(n);
  config.capacity = SlotCount(slots);
  cache->policy_ = std::make_unique<RowPolicy>(
      config, std::span(cache->policy_memory_.data(), policy_size.value()));
  cache->fitMemory();
  return cache;
}

Bytes RowCache::memoryFor(const RowFormat& format, uint64_t slots) {
  return Bytes(slots * (format.stride() + kWordBytes)) + SlotMap::memoryFor(slots) +
         RowPolicy::memoryFor(SlotCount(slots));
}

uint64_t RowCache::slotsIn(const RowFormat& format, Bytes budget, uint64_t most) {
  // The greatest number that fits: costs grow with every slot.
  uint64_t fits = 0;
  uint64_t beyond = std::min<uint64_t>(most, budget.value() / format.stride()) + 1;
  while (beyond - fits > 1) {
    const uint64_t middle = fits + (beyond - fits) / 2;
    (memoryFor(format, middle) <= budget ? fits : beyond) = middle;
  }
  return fits;
}

Status RowCache::setCapacity(Slot slots) {
  TP_CHECK_OP(slots, <=, most_);
  slots = std::max<Slot>(slots, 1);
  if (slots == capacity_) return {};
  if (slots < capacity_) {
    // The policy goes first: it hands out victims while more slots are used than it has.
    policy_->setCapacity(SlotCount(slots));
    while (map_.count() > slots) {
      const auto emptied = evictOne();
      if (!emptied) return tl::unexpected(emptied.error());
      if (*emptied == kNoSlot) break;  // all that are left are needed
      free_.push_back(*emptied);
    }
    TP_TRY(sendWriteBack());
    slots = std::max(slots, static_cast<Slot>(map_.count()));
    moveBelow(slots);
  }
  capacity_ = slots;
  if (policy_->capacity() != SlotCount(slots)) policy_->setCapacity(SlotCount(slots));
  map_.restart(slots);
  forEach([this](RowNumber row, Slot slot) { map_.insert(row, slot); });
  TP_DCHECK_OP(map_.count() + free_.size(), ==, used_);
  fitMemory();
  return {};
}

/// Rows in slots from `end` on go to empty ones before it, of which there are enough. The map is
/// made anew afterwards.
void RowCache::moveBelow(Slot end) {
  std::vector<Slot> empty;
  for (Slot slot = 0; slot < std::min(used_, end); ++slot) {
    if ((states_[slot] & kOccupied) == 0) empty.push_back(slot);
  }
  for (Slot slot = end; slot < used_; ++slot) {
    if ((states_[slot] & kOccupied) == 0) continue;
    TP_CHECK(!empty.empty());
    const Slot to = empty.back();
    empty.pop_back();
    memcpy(row(to), row(slot), stride_);
    low_rows_[to] = low_rows_[slot];
    states_[to] = states_[slot];
    states_[slot] = 0;
    policy_->onMove(SlotIndex(slot), SlotIndex(to));
  }
  used_ = std::min(used_, end);
  free_ = std::move(empty);
}

void RowCache::fitMemory() {
  const uint64_t n = capacity_;
  memory_.use(Bytes(n * stride_));
  low_row_memory_.use(Bytes(n * sizeof(uint32_t)));
  state_memory_.use(Bytes(n));
  policy_->forEachUnused([this](const void* first, uint64_t bytes) {
    policy_memory_.giveBack(static_cast<const std::byte*>(first), Bytes(bytes));
  });
}

}  // namespace tidepool
