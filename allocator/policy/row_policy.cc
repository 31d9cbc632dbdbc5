// SPDX-License-Identifier: Apache-2.0
// Admission of rows, and what is known of those that are in. See row_policy.h; who goes is in
// row_victims.cc, how counts age in row_ages.cc.
#include "allocator/policy/row_policy.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

constexpr uint64_t kSlotBytes = 5;

}  // namespace

uint64_t RowPolicy::sketchBytes(uint64_t slots) {
  return std::max<uint64_t>(slots * 7 / 2, RowSketch::kLine);
}

Bytes RowPolicy::memoryFor(SlotCount most) {
  const uint64_t n = roundUp(most.value(), kSample);
  return Bytes(n * kSlotBytes + trialSlots(n) * sizeof(TrialEntry) +
               roundUp(passingSlots(n) * sizeof(uint32_t), 8) + sketchBytes(n));
}

RowPolicy::RowPolicy(const RowPolicyConfig& config, std::span<std::byte> memory)
    : config_(config), sketch_({}) {
  const uint64_t n = roundUp(config.most.value(), kSample);
  TP_CHECK_OP(n, <=, uint64_t{UINT32_MAX});
  TP_CHECK_OP(memory.size(), >=, memoryFor(config.most).value());
  TP_CHECK_OP(reinterpret_cast<uintptr_t>(memory.data()) % 8, ==, 0u);
  auto* at = reinterpret_cast<uint8_t*>(memory.data());
  const auto take = [&at](uint64_t bytes) {
    uint8_t* taken = at;
    at += roundUp(bytes, 8);
    return taken;
  };
  for (uint8_t** bytes : {&hits_, &next_, &hold_, &score_, &state_}) *bytes = take(n);
  trial_ = reinterpret_cast<TrialEntry*>(take(trialSlots(n) * sizeof(TrialEntry)));
  passing_ = reinterpret_cast<uint32_t*>(take(passingSlots(n) * sizeof(uint32_t)));
  sketch_ = RowSketch({at, sketchBytes(n)});
  for (unsigned score = 0; score < unused_.size(); ++score) {
    unused_[score] = static_cast<float>(std::exp(-(score / kOneUse)));
  }
  setCapacity(config.capacity);
}

bool RowPolicy::needed(SlotIndex slot) const {
  return NextUse(hold_[slot.value()]).ahead(now_) != NextUse::kUnknown;
}

// Uses seen in some ages, less those that prove nothing.
uint8_t RowPolicy::scoreOf(double uses, double ages) const {
  const double proven = std::max(0.0, uses - mixed(config_.tuning.luck));
  return static_cast<uint8_t>(std::min(255.0, proven / ages * kOneUse));
}

// What a row has been used in this age counts half already, should that be more than expected.
uint32_t RowPolicy::currentScore(uint64_t slot) const {
  const auto lately = static_cast<uint32_t>(load(&hits_[slot]) * kOneUse / 2);
  return std::min<uint32_t>(255, std::max<uint32_t>(score_[slot], lately));
}

Admission RowPolicy::onMiss(RowIndex row, NextUse next) {
  ++stats_.misses;
  advanceAges();
  const uint32_t count = sketch_.add(rowHash(row.value(), config_.seed));
  if (used_ < capacity_) return Admission::kAdmit;
  uint32_t mine = next.ahead(now_);
  if (mine == NextUse::kUnknown) mine += 255 - scoreOf(count, config_.tuning.sketch_ages);
  const uint64_t worst = victim();
  if (worst != kNone && mine < badness(worst)) return Admission::kAdmit;
  ++stats_.refused;
  ++refusals_;
  return Admission::kRefuse;
}

void RowPolicy::onInsert(SlotIndex slot, RowIndex row, Admission admission, NextUse next) {
  const uint64_t s = slot.value();
  TP_CHECK_OP(s, <, config_.most.value());
  TP_CHECK_OP(kind(s), ==, kFree);
  ++used_;
  ++stats_.inserted;
  end_ = std::max(end_, s + 1);
  store(&hits_[s], 0);
  store(&next_[s], next.code());
  hold_[s] = 0;
  future_known_ |= next.known();
  if (admission == Admission::kRefuse) {
    // It is the first to go, also where the ring is full: no row is worse than one refused.
    score_[s] = 0;
    setState(s, kSettled, 0);
    return pass(s);
  }
  const uint32_t count = sketch_.estimate(rowHash(row.value(), config_.seed));
  if (!next.known()) return tryOut(s, count);
  score_[s] = scoreOf(count, config_.tuning.sketch_ages);
  setState(s, kSettled, 0);
}

void RowPolicy::tryOut(uint64_t slot, uint32_t count) {
  score_[slot] = static_cast<uint8_t>(count);
  setState(slot, kTrial, 0);
  const double share = static_cast<double>(capacity_) * config_.tuning.trial_share;
  const uint64_t room =
      std::clamp<uint64_t>(static_cast<uint64_t>(share), 1, trialSlots(capacity_));
  while (trial_count_ >= room) settleOldest();
  trial_[(trial_head_ + trial_count_++) % trialSlots(capacity_)] = {
      static_cast<uint32_t>(slot), static_cast<uint32_t>(stats_.misses)};
}

// It is judged by its misses before it came and its hits since. A slot that was freed and used
// again meanwhile is in the ring twice; its row is then judged a little early.
void RowPolicy::settleOldest() {
  const TrialEntry oldest = trial_[trial_head_];
  trial_head_ = (trial_head_ + 1) % trialSlots(capacity_);
  --trial_count_;
  if (kind(oldest.slot) != kTrial) return;
  const double since = (static_cast<uint32_t>(stats_.misses) - oldest.since) / age_;
  const double uses = score_[oldest.slot] + load(&hits_[oldest.slot]);
  score_[oldest.slot] = scoreOf(uses, config_.tuning.sketch_ages + since);
  store(&hits_[oldest.slot], 0);
  setState(oldest.slot, kSettled, 0);
}

void RowPolicy::settleAll() {
  while (trial_count_ > 0) settleOldest();
  for (; passing_count_ > 0; --passing_count_) {
    const uint32_t slot = passing_[passing_head_];
    passing_head_ = (passing_head_ + 1) % passingSlots(capacity_);
    if (kind(slot) == kPassing) setState(slot, kSettled, 0);
  }
  trial_head_ = passing_head_ = 0;
}

void RowPolicy::onRemove(SlotIndex slot, RowIndex row) {
  const uint64_t s = slot.value();
  TP_CHECK(kind(s) != kFree);
  const auto uses = static_cast<uint32_t>(currentScore(s) / kOneUse);
  if (kind(s) == kSettled && uses > 0) sketch_.raise(rowHash(row.value(), config_.seed), uses);
  setState(s, kFree, 0);
  hold_[s] = 0;
  store(&next_[s], 0);
  if (chosen_count_ > 0 && chosen_[chosen_head_] == s) dropChosen();
  --used_;
  ++stats_.removed;
  while (end_ > 0 && kind(end_ - 1) == kFree) --end_;
}

void RowPolicy::onMove(SlotIndex from, SlotIndex to) {
  const uint64_t f = from.value(), t = to.value();
  TP_CHECK(kind(f) != kFree);
  TP_CHECK_OP(kind(t), ==, kFree);
  // Its place in a ring is not known: it is settled, as if its time had come.
  uint8_t score = score_[f];
  if (kind(f) == kTrial) score = scoreOf(score + load(&hits_[f]), config_.tuning.sketch_ages);
  store(&hits_[t], load(&hits_[f]));
  store(&next_[t], load(&next_[f]));
  hold_[t] = hold_[f];
  score_[t] = score;
  setState(t, kSettled, ages(f));
  end_ = std::max(end_, t + 1);
  setState(f, kFree, 0);
  hold_[f] = 0;
  while (end_ > 0 && kind(end_ - 1) == kFree) --end_;
}

void RowPolicy::holdUntil(SlotIndex slot, Step step) {
  const uint32_t until = NextUse(hold_[slot.value()]).ahead(now_);
  const uint32_t wanted = NextUse(step).ahead(now_);
  if (until != NextUse::kUnknown && until >= wanted) return;
  hold_[slot.value()] = NextUse(step).code();
  future_known_ = true;
}

void RowPolicy::needUntilNewest(std::span<const uint32_t> slots, uint32_t skip, Step step) {
  constexpr size_t kOnTheWay = 64;  // slots whose bytes are
  uint8_t* const hold = hold_;      // a store of a byte might change the member, for all one knows
  const uint8_t code = NextUse(step).code();
  const auto first = std::find_if(slots.begin(), slots.end(), [=](auto s) { return s != skip; });
  if (first == slots.end()) return;
  const uint32_t any = *first;  // is needed once more, in place of one that is passed over
  future_known_ = true;
  for (size_t i = 0; i < slots.size(); ++i) {
    const uint32_t later = slots[std::min(i + kOnTheWay, slots.size() - 1)];
    __builtin_prefetch(&hold[later == skip ? any : later], 1);
    hold[slots[i] == skip ? any : slots[i]] = code;
  }
}

void RowPolicy::willUse(SlotIndex slot, Step step) {
  store(&next_[slot.value()], NextUse(step).code());
  future_known_ = true;
}

void RowPolicy::finished(Step step) {
  if (step < now_) return;
  const uint64_t steps = step + 1 - now_;
  now_ = step + 1;
  passing_all_needed_ = false;
  // A byte that is left behind would look like the future again after 255 steps.
  if (future_known_) tidy(std::min(steps, NextUse::kMostAhead) * (end_ / NextUse::kMostAhead + 1));
}

void RowPolicy::tidy(uint64_t slots) {
  for (slots = std::min(slots, end_); slots > 0; --slots) {
    tidy_hand_ = tidy_hand_ + 1 < end_ ? tidy_hand_ + 1 : 0;
    for (uint8_t* code : {&next_[tidy_hand_], &hold_[tidy_hand_]}) {
      const NextUse use(load(code));
      if (use.known() && use.ahead(now_) == NextUse::kUnknown) store(code, 0);
    }
  }
}

void RowPolicy::setCapacity(SlotCount capacity) {
  TP_CHECK_OP(capacity.value(), <=, config_.most.value());
  TP_CHECK_OP(capacity.value(), >, 0u);
  settleAll();
  // A new table begins in the middle, until it is known to be calm or not.
  const double scale =
      capacity_ > 0 ? static_cast<double>(capacity.value()) / static_cast<double>(capacity_) : 0;
  capacity_ = capacity.value();
  const double first = std::sqrt(config_.tuning.age[0] * config_.tuning.age[1]);
  age_ = scale > 0 ? age_ * scale : first * static_cast<double>(capacity_);
  wanted_age_ = config_.tuning.age[0] * static_cast<double>(capacity_);
  sketch_.resize(Bytes(sketchBytes(capacity_)));
}

Bytes RowPolicy::metadataBytes() const {
  return Bytes(std::max(capacity_, end_) * kSlotBytes + trialSlots(capacity_) * sizeof(TrialEntry) +
               passingSlots(capacity_) * sizeof(uint32_t)) +
         sketch_.bytes();
}

}  // namespace tidepool
