// SPDX-License-Identifier: Apache-2.0
// The choice of rows for DRAM. See row_policy.h.
#include "allocator/policy/row_policy.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

constexpr uint64_t kNone = UINT64_MAX;
constexpr uint64_t kSlotBytes = 5;

uint64_t trialSlots(uint64_t slots) { return slots / 16 + 1; }
uint64_t passingSlots(uint64_t slots) { return slots / 16 + 64; }
uint64_t sketchBytes(uint64_t slots) { return std::max<uint64_t>(slots * 7 / 2, RowSketch::kLine); }

}  // namespace

Bytes RowPolicy::memoryFor(SlotCount most) {
  const uint64_t n = roundUp(most.value(), 64);
  return Bytes(n * kSlotBytes + trialSlots(n) * sizeof(TrialEntry) +
               passingSlots(n) * sizeof(uint32_t) + sketchBytes(n) + 128);
}

RowPolicy::RowPolicy(const RowPolicyConfig& config, std::span<std::byte> memory)
    : config_(config), sketch_({}) {
  const uint64_t n = roundUp(config.most.value(), 64);
  TP_CHECK_OP(memory.size(), >=, memoryFor(config.most).value());
  auto* at = reinterpret_cast<uint8_t*>(memory.data());
  const auto take = [&at](uint64_t bytes) {
    uint8_t* taken = at;
    at += roundUp(bytes, 8);
    return taken;
  };
  hits_ = take(n);
  next_ = take(n);
  score_ = take(n);
  state_ = take(n);
  hold_ = take(n);
  trial_ = reinterpret_cast<TrialEntry*>(take(trialSlots(n) * sizeof(TrialEntry)));
  passing_ = reinterpret_cast<uint32_t*>(take(passingSlots(n) * sizeof(uint32_t)));
  sketch_ = RowSketch({at, sketchBytes(n)});
  setCapacity(config.capacity);
}

void RowPolicy::setState(uint64_t slot, Kind kind, unsigned visits) {
  state_[slot] = static_cast<uint8_t>(kind | visits << 2);
}

bool RowPolicy::needed(SlotIndex slot) const {
  return NextUse(hold_[slot.value()]).ahead(now_) != NextUse::kUnknown;
}

// What the slot's row has shown so far of this age counts as soon as it is more than expected.
uint32_t RowPolicy::currentScore(uint64_t slot) const {
  return std::min<uint32_t>(255, std::max<uint32_t>(score_[slot], load(&hits_[slot]) * 8u));
}

// The lower the better: rows with a known use by how far it is, then the others by frequency.
uint32_t RowPolicy::badness(uint64_t slot) const {
  if (kind(slot) != kSettled || needed(SlotIndex(slot))) return kKept;
  const uint32_t ahead = NextUse(load(&next_[slot])).ahead(now_);
  if (ahead != NextUse::kUnknown) return ahead;
  return NextUse::kUnknown + 255 - currentScore(slot);
}

Admission RowPolicy::onMiss(RowIndex row, NextUse next) {
  ++stats_.misses;
  advanceAges();
  const uint32_t count = sketch_.add(rowHash(row.value(), config_.seed));
  if (used_ < capacity_) return Admission::kAdmit;
  if (passing_count_ > 0) {
    // There is room for whatever is better than a row that is passing through.
  }
  const uint64_t worst = victim();
  uint32_t mine = next.ahead(now_);
  if (mine == NextUse::kUnknown) {
    const double score = std::max(0.0, (count - config_.tuning.prior) / config_.tuning.grace * kOneUse);
    mine += 255 - static_cast<uint32_t>(std::min(255.0, score));
  }
  const uint32_t theirs = worst == kNone ? 0 : badness(worst);
  if (theirs >= NextUse::kUnknown) steerAge(NextUse::kUnknown + 255 - theirs);
  if (mine < theirs) return Admission::kAdmit;
  ++stats_.refused;
  return Admission::kRefuse;
}

void RowPolicy::onInsert(SlotIndex slot, RowIndex row, Admission admission, NextUse next) {
  const uint64_t s = slot.value();
  TP_CHECK_OP(s, <, roundUp(config_.most.value(), 64));
  TP_CHECK_OP(kind(s), ==, kFree);
  ++used_;
  ++stats_.inserted;
  store(&hits_[s], 0);
  store(&next_[s], next.code());
  hold_[s] = 0;
  const uint32_t count = sketch_.estimate(rowHash(row.value(), config_.seed));
  if (admission == Admission::kRefuse && passing_count_ < passingSlots(capacity_)) {
    score_[s] = 0;
    setState(s, kPassing, 0);
    passing_[(passing_head_ + passing_count_++) % passingSlots(capacity_)] =
        static_cast<uint32_t>(s);
    return;
  }
  if (next.known() || admission == Admission::kRefuse) {
    score_[s] = static_cast<uint8_t>(std::min(255.0, (count - 1) / 1.5 * kOneUse));
    setState(s, kSettled, 0);
    return;
  }
  score_[s] = static_cast<uint8_t>(count);
  setState(s, kTrial, 0);
  const auto room = std::max<uint64_t>(
      1, static_cast<uint64_t>(static_cast<double>(capacity_) * config_.tuning.trial_share));
  while (trial_count_ >= std::min(room, trialSlots(capacity_))) settleOldest();
  trial_[(trial_head_ + trial_count_++) % trialSlots(capacity_)] = {
      static_cast<uint32_t>(s), static_cast<uint32_t>(stats_.misses)};
}

// The oldest row on trial is judged by its misses before it came and its hits since.
void RowPolicy::settleOldest() {
  const TrialEntry oldest = trial_[trial_head_];
  trial_head_ = (trial_head_ + 1) % trialSlots(capacity_);
  --trial_count_;
  if (kind(oldest.slot) != kTrial) return;
  const double ages = (static_cast<uint32_t>(stats_.misses) - oldest.since) / age_;
  const double uses = score_[oldest.slot] + load(&hits_[oldest.slot]);
  const double rate = std::max(0.0, uses - config_.tuning.prior) / (config_.tuning.grace + ages);
  score_[oldest.slot] = static_cast<uint8_t>(std::min(255.0, rate * kOneUse));
  store(&hits_[oldest.slot], 0);
  setState(oldest.slot, kSettled, 0);
}

// They came in the order of their batches, which end in that order: when the first few are needed, so
// are the others.
uint64_t RowPolicy::takePassing() {
  constexpr uint64_t kPassingTries = 4;
  for (uint64_t tries = std::min(passing_count_, kPassingTries); tries > 0; --tries) {
    const uint32_t slot = passing_[passing_head_];
    if (kind(slot) == kPassing && !needed(SlotIndex(slot))) return slot;
    passing_head_ = (passing_head_ + 1) % passingSlots(capacity_);
    if (kind(slot) == kPassing) {
      passing_[(passing_head_ + passing_count_ - 1) % passingSlots(capacity_)] = slot;
    } else {
      --passing_count_;
    }
  }
  return kNone;
}

uint64_t RowPolicy::sampleVictim() {
  const uint64_t end = roundUp(config_.most.value(), kSample);
  for (uint64_t turned = 0; turned < end; turned += kSample) {
    hand_ = hand_ + kSample < end ? hand_ + kSample : 0;
    uint64_t worst = kNone;
    uint32_t most = 0;
    for (uint64_t slot = hand_; slot < hand_ + kSample; ++slot) {
      const uint32_t bad = badness(slot);
      if (bad == kKept || (worst != kNone && bad <= most)) continue;
      worst = slot;
      most = bad;
    }
    if (worst != kNone) return worst;
  }
  return kNone;
}

uint64_t RowPolicy::victim() {
  if (peek_ == kNone || badness(peek_) == kKept) peek_ = sampleVictim();
  return peek_;
}

std::optional<SlotIndex> RowPolicy::nextVictim() {
  uint64_t slot = takePassing();
  if (slot == kNone) slot = victim();
  while (slot == kNone && trial_count_ > 0) {
    settleOldest();
    slot = victim();
  }
  if (slot == kNone) return std::nullopt;
  return SlotIndex(slot);
}

void RowPolicy::onRemove(SlotIndex slot, RowIndex row) {
  const uint64_t s = slot.value();
  TP_CHECK(kind(s) != kFree);
  if (config_.tuning.remember && kind(s) == kSettled) {
    sketch_.raise(rowHash(row.value(), config_.seed),
                  static_cast<uint32_t>(currentScore(s) / kOneUse * config_.tuning.remember));
  }
  setState(s, kFree, 0);
  if (peek_ == s) peek_ = kNone;
  --used_;
  ++stats_.removed;
}

void RowPolicy::needUntil(SlotIndex slot, Step step) {
  const NextUse old(hold_[slot.value()]);
  const uint32_t until = old.ahead(now_);
  const NextUse wanted(step);
  if (until != NextUse::kUnknown && until >= wanted.ahead(now_)) return;
  hold_[slot.value()] = wanted.code();
}

void RowPolicy::finished(Step step) {
  now_ = step + 1;
}

// One more miss: as many slots and sketch lines are aged as keep the pace.
void RowPolicy::advanceAges() {
  slots_due_ += static_cast<double>(capacity_) / age_;
  for (; slots_due_ >= 1; slots_due_ -= 1) {
    ageSlot(age_hand_);
    age_hand_ = age_hand_ + 1 < capacity_ ? age_hand_ + 1 : 0;
  }
  lines_due_ += static_cast<double>(sketch_.lines()) / age_;
  for (; lines_due_ >= 1; lines_due_ -= 1) sketch_.halveOne();
}

void RowPolicy::ageSlot(uint64_t slot) {
  if (kind(slot) != kSettled) return;
  const unsigned seen = visits(slot);
  const uint32_t hits = load(&hits_[slot]);
  store(&hits_[slot], 0);
  const double now = hits * kOneUse;
  double score = score_[slot];
  if (seen == 0) {
    setState(slot, kSettled, 1);
    score = std::max(score, now);
  } else {
    if (hits == 0 && score >= 64) {
      score /= 4;
    } else {
      static constexpr double kGain[] = {0.5, 0.5, 0.33, 0.25, 0.2, 0.15};
      score += (now - score) * kGain[std::min(seen, 5u)];
    }
    if (seen < 5) setState(slot, kSettled, seen + 1);
  }
  score_[slot] = static_cast<uint8_t>(std::clamp(std::floor(score + 0.5), 0.0, 255.0));
}

void RowPolicy::steerAge(uint32_t score) {
  const RowTuning& tuning = config_.tuning;
  victim_score_ += (score - victim_score_) / 1024;
  const double wanted = tuning.victim_uses * kOneUse;
  const auto slots = static_cast<double>(capacity_);
  const double step = 1 + 0.5 / slots;
  age_ *= victim_score_ > wanted ? 1 / step : step;
  age_ = std::clamp(age_, tuning.shortest_age * slots, tuning.longest_age * slots);
}

void RowPolicy::setCapacity(SlotCount capacity) {
  TP_CHECK_OP(capacity.value(), <=, config_.most.value());
  TP_CHECK_OP(capacity.value(), >, 0u);
  capacity_ = capacity.value();
  sketch_.resize(Bytes(sketchBytes(capacity_)));
  age_ = 4.0 * static_cast<double>(capacity_);
  age_hand_ = 0;
  trial_head_ = trial_count_ = passing_head_ = passing_count_ = 0;
}

Bytes RowPolicy::metadataBytes() const {
  return Bytes(capacity_ * kSlotBytes + trialSlots(capacity_) * sizeof(TrialEntry) +
               passingSlots(capacity_) * sizeof(uint32_t)) +
         sketch_.bytes();
}

}  // namespace tidepool
