// SPDX-License-Identifier: Apache-2.0
// Chooses which rows of an embedding table have a slot in DRAM, from hits, misses and what is known
// of the next batches. Pure and deterministic. Borrows the caller's memory, never allocates. onHit()
// may be called by any thread at any time; everything else under the table's lock.
//
// How a table uses it:
//   a row was found in a slot   onHit(slot), or onHit(slot, next) with a known future
//   a row was missed            onMiss(row, next) counts it and says whether it deserves a slot. If
//                               it gets one: nextVictim() while no slot is free, evict that row,
//                               onRemove(); then onInsert(slot, row, the answer)
//   direct tier                 a refused row is used where it is
//   fetch tier                  a refused row is inserted all the same, as kRefuse: it goes first
//   a batch needs a slot        needUntil(slot, step): not given up before finished(step)
//   a batch became known        willUse(slot, step) for each resident row that had no known use;
//                               RowFuture (row_future.h) keeps track of which use comes next
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "allocator/policy/row_sketch.h"
#include "allocator/policy/row_units.h"

namespace tidepool {

enum class Admission : uint8_t { kAdmit, kRefuse };

/// The knobs of the algorithm. The defaults are what the simulator (bench/row_sim) found best over
/// all of its traces; results are flat around them.
struct RowTuning {
  // Misses after which every count has been aged once, as a multiple of the slots. It is steered
  // between these so that the rows that go would have been used about `victim_uses` times meanwhile:
  // fewer and chance decides, more and the counts are slow to follow a hot set that moves.
  double shortest_age = 0.25;
  double longest_age = 12;
  double victim_uses = 2;
  // New rows are on trial for as long as it takes to fill this share of the slots with newer ones.
  double trial_share = 0.06;
  double prior = 1;
  double grace = 1.5;
  uint32_t remember = 1;
};

struct RowPolicyConfig {
  SlotCount most;      // slots there will ever be
  SlotCount capacity;  // slots to use at first
  uint64_t seed = 0;
  RowTuning tuning;
};

struct RowPolicyStats {
  uint64_t misses = 0;
  uint64_t refused = 0;
  uint64_t inserted = 0;
  uint64_t removed = 0;
};

class RowPolicy {
 public:
  /// What a policy for `most` slots borrows; what belongs to slots beyond the capacity is not
  /// touched.
  static Bytes memoryFor(SlotCount most);

  /// `memory` is zero-filled, memoryFor(config.most) bytes, and outlives the policy.
  RowPolicy(const RowPolicyConfig& config, std::span<std::byte> memory);

  /// The row in this slot was used. At most one byte is stored.
  void onHit(SlotIndex slot) {
    const uint8_t hits = load(&hits_[slot.value()]);
    if (hits < kMostHits) store(&hits_[slot.value()], static_cast<uint8_t>(hits + 1));
  }
  /// The same, and its next use is known (or known to lie behind what is known).
  void onHit(SlotIndex slot, NextUse next) {
    onHit(slot);
    store(&next_[slot.value()], next.code());
  }

  /// A row was used that has no slot.
  Admission onMiss(RowIndex row, NextUse next = NextUse());
  /// onMiss() is going to be called for this row.
  void prefetch(RowIndex row) const { sketch_.prefetch(rowHash(row.value(), config_.seed)); }
  /// The row is in the slot, which was free, from now on.
  void onInsert(SlotIndex slot, RowIndex row, Admission admission, NextUse next = NextUse());
  /// The slot to give up next: never one that is needed. Nothing when all are needed or none is
  /// used. It stays the policy's choice until onRemove().
  std::optional<SlotIndex> nextVictim();
  /// The slot is free. `row` is what was in it.
  void onRemove(SlotIndex slot, RowIndex row);

  /// A batch in flight uses the slot up to this step, at most NextUse::kMostAhead ahead.
  void needUntil(SlotIndex slot, Step step);
  /// A step that became known is the slot's next use.
  void willUse(SlotIndex slot, Step step) { store(&next_[slot.value()], NextUse(step).code()); }
  /// Steps up to this one are done; never goes back.
  void finished(Step step);

  /// Fewer slots: nextVictim() until no more than that are used. The table numbers its slots; those
  /// at or beyond the new capacity are to be given up or moved by it.
  void setCapacity(SlotCount capacity);
  SlotCount capacity() const { return SlotCount(capacity_); }
  SlotCount used() const { return SlotCount(used_); }
  /// Slots and sketch as they are now.
  Bytes metadataBytes() const;
  const RowPolicyStats& stats() const { return stats_; }

  bool needed(SlotIndex slot) const;
  double ageMisses() const { return age_; }
  double victimUses() const { return victim_score_ / kOneUse; }

 private:
  enum Kind : uint8_t { kFree = 0, kSettled = 1, kTrial = 2, kPassing = 3 };
  static constexpr uint8_t kMostHits = 255;
  static constexpr double kOneUse = 16;  // a score of this much is one use an age
  static constexpr uint32_t kSample = 64;
  static constexpr uint32_t kKept = UINT32_MAX;  // badness of what cannot go

  struct TrialEntry {
    uint32_t slot;
    uint32_t since;  // misses
  };

  static uint8_t load(const uint8_t* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
  static void store(uint8_t* at, uint8_t value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }

  Kind kind(uint64_t slot) const { return static_cast<Kind>(state_[slot] & 3); }
  uint8_t visits(uint64_t slot) const { return state_[slot] >> 2; }
  void setState(uint64_t slot, Kind kind, unsigned visits);
  uint32_t badness(uint64_t slot) const;
  uint32_t currentScore(uint64_t slot) const;
  uint64_t sampleVictim();
  uint64_t victim();
  uint64_t takePassing();
  void settleOldest();
  void ageSlot(uint64_t slot);
  void advanceAges();
  void steerAge(uint32_t score);

  RowPolicyConfig config_;
  uint64_t capacity_ = 0, used_ = 0;
  uint8_t* hits_;   // uses since the slot was last aged
  uint8_t* next_;   // NextUse
  uint8_t* score_;  // uses an age, in sixteenths; of a row on trial: its count when it came
  uint8_t* state_;  // Kind, and how often the slot was aged
  uint8_t* hold_;   // NextUse: needed up to and including
  TrialEntry* trial_;
  uint32_t* passing_;
  RowSketch sketch_;
  uint64_t trial_head_ = 0, trial_count_ = 0;
  uint64_t passing_head_ = 0, passing_count_ = 0;
  uint64_t hand_ = 0, age_hand_ = 0, tidy_hand_ = 0, peek_ = UINT64_MAX;
  double age_ = 0, slots_due_ = 0, lines_due_ = 0;
  double victim_score_ = 0;
  Step now_;
  RowPolicyStats stats_;
};

}  // namespace tidepool
