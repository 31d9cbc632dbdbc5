// SPDX-License-Identifier: Apache-2.0
// Chooses which rows of an embedding table have a slot in DRAM, from hits, misses and what is known
// of the next batches. Pure and deterministic. Borrows the caller's memory, never allocates. Any
// thread may call onHit() at any time; everything else is called under the table's lock.
//
// How a table uses it:
//   a row was found in a slot   onHit(slot), or onHit(slot, next) where the future is known
//   a row has no slot           onMiss(row, next) counts the use and says whether the row deserves
//   a
//                               slot. If it gets one: while no slot is free, nextVictim(), write
//                               that row back and onRemove() it; then onInsert(slot, row, the
//                               answer, next)
//   direct tier                 a refused row is used where it is
//   fetch tier                  a refused row is inserted all the same, as kRefuse: it goes first
//   a batch uses a slot         needUntil(slot, step): not given up before finished(step)
//   a batch becomes known       willUse(slot, step) of rows whose next use that brings
//   the share changes           setCapacity(), then nextVictim() while more slots are used; rows in
//                               slots that are to vanish: onMove() to free ones
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "allocator/policy/row_sketch.h"
#include "allocator/policy/row_units.h"

namespace tidepool {

enum class Admission : uint8_t { kAdmit, kRefuse };

/// The knobs of the algorithm. The defaults are what the simulator (bench/row_sim) found best over
/// its traces and sizes; results are flat around them. Where there are two, the first holds while
/// the hot set stays as it is, the second while it moves fast; in between they are mixed.
struct RowTuning {
  /// Every count is aged once in so many misses, as a multiple of the slots: long, and chance
  /// decides less; short, and what was hot is forgotten sooner.
  std::array<double, 2> age = {4, 1};
  /// Misses of a row that prove nothing: most rows that were missed two or three times of late are
  /// rare ones that happened to come up. With a hot set that moves, waiting costs more.
  std::array<double, 2> luck = {2.9, 1};
  /// Weight of a row's last age against all before it.
  std::array<double, 2> gain = {0.08, 0.4};
  /// Share of often used rows that go out of use while as many rows are missed as there are slots:
  /// at the first the hot set is taken to stay, at the second to move fast.
  std::array<double, 2> leaving = {0.003, 0.05};
  /// The sketch remembers this many ages of misses.
  double sketch_ages = 1.75;
  /// Admitted rows are safe until this share of the slots has gone to newer ones.
  double trial_share = 0.015;
};

struct RowPolicyConfig {
  SlotCount most;      // slots there will ever be, fewer than 2^32
  SlotCount capacity;  // slots to use at first
  uint64_t seed = 0;   // of the hash
  RowTuning tuning = {};
};

struct RowPolicyStats {
  uint64_t misses = 0;
  uint64_t refused = 0;
  uint64_t inserted = 0;
  uint64_t removed = 0;
};

class RowPolicy {
 public:
  /// What a policy for `most` slots borrows: about nine bytes each. What belongs to slots beyond
  /// the capacity is not touched.
  static Bytes memoryFor(SlotCount most);

  /// `memory` is zero-filled, memoryFor(config.most) bytes, aligned to 8, and outlives the policy.
  RowPolicy(const RowPolicyConfig& config, std::span<std::byte> memory);

  /// onHit() is going to be called for this slot.
  void prefetchHit(SlotIndex slot) const { __builtin_prefetch(&hits_[slot.value()], 1); }
  /// The row in this slot was used. Stores one byte at most.
  void onHit(SlotIndex slot) {
    const uint8_t hits = load(&hits_[slot.value()]);
    if (hits < kMostHits) store(&hits_[slot.value()], static_cast<uint8_t>(hits + 1));
  }
  /// The same, and its next use: one byte more.
  void onHit(SlotIndex slot, NextUse next) {
    onHit(slot);
    store(&next_[slot.value()], next.code());
  }

  /// A row was used that has no slot; when it is used next.
  Admission onMiss(RowIndex row, NextUse next = NextUse());
  /// onMiss() is going to be called for this row.
  void prefetch(RowIndex row) const { sketch_.prefetch(rowHash(row.value(), config_.seed)); }
  /// The row is in this slot, which was free, from now on.
  void onInsert(SlotIndex slot, RowIndex row, Admission admission, NextUse next = NextUse());
  /// The slot to give up next: never one that is needed. Nothing when all are needed or none is
  /// used.
  std::optional<SlotIndex> nextVictim();
  /// What nextVictim() is likely to say after so many others have gone: for asking for what will be
  /// read of it then.
  std::optional<SlotIndex> likelyVictim(uint32_t turns) const;
  /// The slot is free from now on; any slot, chosen by the policy or not. `row` was in it.
  void onRemove(SlotIndex slot, RowIndex row);
  /// The row in `from` was moved to `to`, which was free.
  void onMove(SlotIndex from, SlotIndex to);

  /// A batch in flight uses the slot up to this step, at most NextUse::kMostAhead ahead.
  void needUntil(SlotIndex slot, Step step) {
    // Most look-ups of a batch are of rows that occur in it more than once.
    if (hold_[slot.value()] != NextUse(step).code()) holdUntil(slot, step);
  }
  /// The same of many, `skip` passed over, where no later step was said of any, or that need be
  /// known no more. A store each: no branch depends on what a slot was needed for before.
  void needUntilNewest(std::span<const uint32_t> slots, uint32_t skip, Step step);
  /// A step that became known is the next to use the slot.
  void willUse(SlotIndex slot, Step step);
  /// Steps up to this one are done.
  void finished(Step step);

  void setCapacity(SlotCount capacity);
  SlotCount capacity() const { return SlotCount(capacity_); }
  SlotCount used() const { return SlotCount(used_); }
  bool resident(SlotIndex slot) const { return kind(slot.value()) != kFree; }
  bool needed(SlotIndex slot) const;
  /// Calls act(first byte, bytes) for every part of its memory that is not in use at this capacity:
  /// the owner may take it back, and it is zeros when it is used again.
  template <typename Act>
  void forEachUnused(Act act) const {
    const uint64_t used = roundUp(end_ > capacity_ ? end_ : capacity_, kSample);
    const uint64_t most = roundUp(config_.most.value(), kSample);
    for (uint8_t* bytes : {hits_, next_, hold_, score_, state_}) act(bytes + used, most - used);
    act(trial_ + trialSlots(capacity_),
        (trialSlots(most) - trialSlots(capacity_)) * sizeof(TrialEntry));
    act(passing_ + passingSlots(capacity_),
        (passingSlots(most) - passingSlots(capacity_)) * sizeof(uint32_t));
    act(sketch_.unused().data(), sketch_.unused().size());
  }
  /// Slots and sketch as they are now.
  Bytes metadataBytes() const;
  const RowPolicyStats& stats() const { return stats_; }
  /// Enough was seen to know who is hot, and that stays as it is: a smaller sample of hits and
  /// misses will do.
  bool calm() const { return restless_ < kCalm && stats_.misses >= kSeenOften * capacity_; }

 private:
  enum Kind : uint8_t {
    kFree = 0,
    kSettled = 1,
    kTrial = 2,    // admitted lately
    kPassing = 3,  // refused, but on a tier whose rows must come in
  };
  struct TrialEntry {
    uint32_t slot;
    uint32_t since;  // misses
  };

  static constexpr uint8_t kMostHits = 255;
  static constexpr double kOneUse = 32;          // the score of one use an age
  static constexpr uint32_t kSample = 64;        // slots of which the worst goes: a cache line
  static constexpr uint32_t kMostChosen = 16;    // victims that are known ahead
  static constexpr uint64_t kNone = UINT64_MAX;  // no slot
  static constexpr uint32_t kKept = UINT32_MAX;  // badness of what cannot go
  static constexpr uint32_t kRefusals = 16;  // that a victim outlasts before another is looked for
  static constexpr double kCalm = 0.25;
  static constexpr uint64_t kSeenOften = 4;  // misses a slot
  static constexpr unsigned kGrownUp = 5;    // ages after which a row is like all others

  static uint8_t load(const uint8_t* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
  static void store(uint8_t* at, uint8_t value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
  static uint64_t trialSlots(uint64_t slots) { return slots / 32 + 1; }
  static uint64_t passingSlots(uint64_t slots) { return slots / 16 + 64; }
  static uint64_t sketchBytes(uint64_t slots);

  Kind kind(uint64_t slot) const { return static_cast<Kind>(state_[slot] & 3); }
  unsigned ages(uint64_t slot) const { return state_[slot] >> 2; }
  void setState(uint64_t slot, Kind kind, unsigned ages) {
    state_[slot] = static_cast<uint8_t>(kind | ages << 2);
  }
  double mixed(const std::array<double, 2>& knob) const {
    return knob[0] + restless_ * (knob[1] - knob[0]);
  }
  uint8_t scoreOf(double uses, double ages) const;
  uint32_t currentScore(uint64_t slot) const;
  uint32_t badness(uint64_t slot) const;
  uint32_t worstOfLine(uint64_t line, uint64_t* slots, uint32_t most) const;
  void chooseVictims(uint32_t most);
  void dropChosen();
  uint64_t victim();
  uint64_t takePassing();
  void pass(uint64_t slot);
  void holdUntil(SlotIndex slot, Step step);
  void tryOut(uint64_t slot, uint32_t count);
  void settleOldest();
  void settleAll();
  void advanceAges();
  void ageSlot(uint64_t slot);
  double agedScore(uint64_t slot, double uses);
  void noteLeaving(double expected, double seen);
  uint8_t rounded(double score);
  void tidy(uint64_t slots);

  RowPolicyConfig config_;
  uint64_t capacity_ = 0, used_ = 0;
  uint64_t end_ = 0;  // no slot from here on is used
  // One byte a slot each:
  uint8_t* hits_ = nullptr;  // uses since the slot was last aged
  uint8_t* next_ = nullptr;  // NextUse
  uint8_t* hold_ = nullptr;  // NextUse: needed up to then
  uint8_t* score_;  // uses an age, times kOneUse; of a row on trial: its misses before it came
  uint8_t* state_;  // Kind, and how often the slot was aged
  TrialEntry* trial_;
  uint32_t* passing_;
  uint64_t trial_head_ = 0, trial_count_ = 0;  // rings, the oldest first
  uint64_t passing_head_ = 0, passing_count_ = 0;
  bool passing_all_needed_ = false;  // since the last finished(): looking again is of no use
  RowSketch sketch_;
  std::array<float, 256> unused_;  // chance that a row of a score has no use in an age
  uint64_t victim_hand_ = 0, age_hand_ = 0, tidy_hand_ = 0;
  // Ring of victims; misses are compared with the first, which may have been freed since.
  std::array<uint64_t, kMostChosen> chosen_{};
  uint32_t chosen_head_ = 0, chosen_count_ = 0;
  uint32_t refusals_ = 0;            // that the first has outlasted
  double age_ = 0, wanted_age_ = 0;  // misses
  double slots_due_ = 0, lines_due_ = 0;
  double leaving_ = 0, restless_ = 0;
  uint64_t dither_ = 0;
  Step now_;
  bool future_known_ = false;
  RowPolicyStats stats_;
};

}  // namespace tidepool
