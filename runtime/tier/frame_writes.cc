// SPDX-License-Identifier: Apache-2.0
// FrameTable: writes that are under way, and what becomes of frames while they may come late.
#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/tier/frame_table.h"

namespace tidepool {

/// One client's entry, while it has one. A child's copy of it does nothing: its slot is another.
class FrameTable::Record final : public WriteRecord {
 public:
  Record(FrameTable& table, uint32_t where) : table_(table), where_(where) {}

  void begin(uint32_t connection) override {
    Locked locked(table_);
    if (!table_.records_ || table_.slot_ == kNoSlot) return;
    const auto entries = table_.writesOf(table_.held_);
    if (slot_ != table_.slot_) {
      slot_ = table_.slot_;
      const auto free = std::find(entries.begin(), entries.end() - 1, uint64_t{0});
      entry_ = static_cast<uint32_t>(free - entries.begin());
    }
    if (entry_ != kShared) return entries[entry_].store(uint64_t{connection} << 32 | where_);
    if (entries[kShared] == 0) entries[kShared].store(where_);
  }
  void end() override {
    Locked locked(table_);
    // Others may have the last one, too.
    if (here() && entry_ != kShared) table_.writesOf(table_.held_)[entry_].store(0);
    slot_ = kNoSlot;
  }
  void giveUp() override {
    Locked locked(table_);
    if (here()) {
      const uint64_t before = table_.writesOf(table_.held_)[entry_].fetch_or(kGivenUp);
      if ((before & kGivenUp) == 0) ++table_.given_up_;
      table_.writes_late_.store(true, std::memory_order_relaxed);
    }
    slot_ = kNoSlot;
  }

 private:
  static constexpr uint32_t kShared = kWriteEntries - 1;
  bool here() const { return slot_ != kNoSlot && slot_ == table_.slot_; }

  FrameTable& table_;
  const uint32_t where_;
  uint32_t slot_ = kNoSlot;  // no writes are under way
  uint32_t entry_ = 0;
};

std::unique_ptr<WriteRecord> FrameTable::recordWrites(uint32_t where) {
  TP_CHECK_OP(where + 1, <, kGivenUp);
  return std::make_unique<Record>(*this, where + 1);
}

bool FrameTable::anyWrites(std::span<WriteEntry> entries) {
  return std::any_of(entries.begin(), entries.end(), [](const auto& entry) { return entry != 0; });
}

bool FrameTable::anyWrites(uint32_t index) const {
  if (slot(index).state.load() != SlotState::kDead) return false;
  const auto held = mapHeld(index);
  return !held || anyWrites(writesOf(*held));
}

void FrameTable::leaveSlot() {
  if (!anyWrites(writesOf(held_))) return freeSlot(slot_);
  slot(slot_).state.store(SlotState::kDead);
  slot_ = kNoSlot;
  held_here_.store(0, std::memory_order_relaxed);
}

std::optional<FrameTable::LateWrites> FrameTable::nextLateWrites() {
  if (!writes_late_.load(std::memory_order_relaxed)) return std::nullopt;
  Locked locked(*this);
  const uint32_t slots = header().slots_end;
  for (uint32_t looked = 0; looked <= slots; ++looked) {
    const uint32_t index = late_slot_ % slots;
    const bool own = index == slot_;
    const bool dead = slot(index).state.load() == SlotState::kDead;
    const Result<Mapping> other = dead ? mapHeld(index) : Result<Mapping>(Mapping());
    if (own || (dead && other)) {
      const auto entries = writesOf(own ? held_ : *other);
      while (late_entry_ < kWriteEntries) {
        const uint32_t entry = late_entry_++;
        const uint64_t word = entries[entry].load();
        if (own ? (word & kGivenUp) != 0 : word != 0) return LateWrites{index, entry, word};
      }
    }
    late_slot_ = index + 1;
    late_entry_ = 0;
  }
  writes_late_.store(false, std::memory_order_relaxed);
  return std::nullopt;
}

void FrameTable::fenced(const LateWrites& writes) {
  Locked locked(*this);
  const bool own = writes.slot == slot_;
  if (!own && slot(writes.slot).state.load() != SlotState::kDead) return;  // others were quicker
  const Result<Mapping> other = own ? Result<Mapping>(Mapping()) : mapHeld(writes.slot);
  if (!other) return;  // they are found again
  const auto entries = writesOf(own ? held_ : *other);
  uint64_t word = writes.word;
  if (!entries[writes.entry].compare_exchange_strong(word, 0)) return;
  if (own) {
    if (--given_up_ == 0) dropLimbo();
  } else if (!anyWrites(entries)) {
    freeSlot(writes.slot);
    ++fenced_;
  }
}

void FrameTable::dropLimbo() {
  if (!in_limbo_) return;
  for (uint64_t word = 0, end = wordsInUse(); word < end; ++word) {
    const uint64_t mask = std::exchange(limbo()[word], 0);
    if (mask == 0) continue;
    held()[word] &= ~mask;
    dropHolds(word, mask);
  }
  in_limbo_ = false;
  ++fenced_;
}

}  // namespace tidepool
