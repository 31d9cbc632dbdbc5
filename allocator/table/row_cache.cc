// SPDX-License-Identifier: Apache-2.0
// RowCache: placing, evicting and writing back.
#include "allocator/table/row_cache.h"

#include <cstring>

#include "runtime/base/check.h"

namespace tidepool {
RowCache::RowCache(const RowFormat& format, RowHome& home, Slot slots)
    : stride_(format.stride()), row_bytes_(format.rowBytes()), home_(home), capacity_(slots) {}

Result<std::unique_ptr<RowCache>> RowCache::create(const RowFormat& format, RowHome& home,
                                                   Slot slots) {
  TP_CHECK_OP(slots, <, kNoSlot);
  std::unique_ptr<RowCache> cache(new RowCache(format, home, slots));
  auto memory = HugeMemory::allocate(Bytes(uint64_t{slots} * format.stride()));
  if (!memory) return tl::unexpected(memory.error());
  cache->slots_ = memory->data();
  cache->memory_ = std::move(*memory);
  auto words = HugeMemory::allocate(Bytes(uint64_t{slots} * sizeof(uint64_t)));
  if (!words) return tl::unexpected(words.error());
  cache->words_ = reinterpret_cast<uint64_t*>(words->data());
  cache->word_memory_ = std::move(*words);
  auto map = SlotMap::create(slots);
  if (!map) return tl::unexpected(map.error());
  cache->map_ = std::move(*map);
  const Bytes policy_size = RowPolicy::memoryFor(SlotCount(slots));
  auto policy_memory = HugeMemory::allocate(policy_size);
  if (!policy_memory) return tl::unexpected(policy_memory.error());
  RowPolicyConfig config;
  config.most = config.capacity = SlotCount(slots);
  cache->policy_ =
      std::make_unique<RowPolicy>(config, std::span(policy_memory->data(), policy_size.value()));
  cache->policy_memory_ = std::move(*policy_memory);
  return cache;
}

Status RowCache::writeHome(Slot slot) {
  const RowNumber number = words_[slot] >> kSlotBits;
  ++written_back_;
  if (home_.memory() != nullptr) {
    memcpy(home_.memory() + number * stride_, row(slot), row_bytes_);
    return {};
  }
  if (writing_ == nullptr) {
    auto chunk = home_.link()->take();
    if (!chunk) return tl::unexpected(chunk.error());
    writing_ = *chunk;
  }
  memcpy(writing_->bytes + writing_->rows.size() * stride_, row(slot), row_bytes_);
  writing_->rows.push_back(number);
  if (writing_->rows.size() < home_.link()->rowsPerChunk()) return {};
  return sendWriteBack();
}

Status RowCache::sendWriteBack() {
  if (writing_ == nullptr) return {};
  RowChunk* const chunk = writing_;
  writing_ = nullptr;
  TP_TRY(home_.link()->writeAndForget(chunk));
  return home_.link()->send();
}

Status RowCache::empty(Slot slot) {
  TP_CHECK((words_[slot] & kLoading) == 0);
  if ((words_[slot] & kDirty) != 0) TP_TRY(writeHome(slot));
  map_.erase(words_[slot] >> kSlotBits);
  words_[slot] = 0;
  ++evictions_;
  return {};
}

Result<Slot> RowCache::place(RowNumber number, Admission admission) {
  Slot slot = kNoSlot;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (used_ < capacity_) {
    slot = used_++;
  } else {
    const std::optional<SlotIndex> victim = policy_->nextVictim();
    if (!victim) return kNoSlot;
    slot = static_cast<Slot>(victim->value());
    policy_->onRemove(*victim, RowIndex(words_[slot] >> kSlotBits));
    TP_TRY(empty(slot));
  }
  words_[slot] = number << kSlotBits | kOccupied;
  map_.insert(number, slot);
  policy_->onInsert(SlotIndex(slot), RowIndex(number), admission);
  return slot;
}

Status RowCache::writeBackAll() {
  for (Slot slot = 0; slot < used_; ++slot) {
    if ((words_[slot] & kDirty) == 0) continue;
    TP_TRY(writeHome(slot));
    words_[slot] &= ~kDirty;
  }
  TP_TRY(sendWriteBack());
  return home_.link() == nullptr ? Status() : home_.link()->finishAll();
}

void RowCache::forgetFrom(RowNumber first) {
  for (Slot slot = 0; slot < used_; ++slot) {
    if ((words_[slot] & kOccupied) == 0 || words_[slot] >> kSlotBits < first) continue;
    policy_->onRemove(SlotIndex(slot), RowIndex(words_[slot] >> kSlotBits));
    map_.erase(words_[slot] >> kSlotBits);
    words_[slot] = 0;
    free_.push_back(slot);
  }
}

Bytes RowCache::metadata() const {
  return map_.memory() + Bytes(uint64_t{capacity_} * 8) + policy_->metadataBytes();
}

}  // namespace tidepool
