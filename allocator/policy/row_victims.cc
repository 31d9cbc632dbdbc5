// SPDX-License-Identifier: Apache-2.0
// Which row goes next: the worst of a line of slots, sixteen of them at a step. A part of
// row_policy.h.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "allocator/policy/row_policy.h"

namespace tidepool {
namespace {

// A byte of each of sixteen slots; compilers know what the processor has for that. The answers are
// the same on all.
constexpr unsigned kLanes = 16;
typedef uint8_t Lanes __attribute__((vector_size(kLanes)));

constexpr Lanes all(uint8_t value) { return Lanes{} + value; }
Lanes less(Lanes a, Lanes b) { return std::bit_cast<Lanes>(a < b); }
Lanes equal(Lanes a, Lanes b) { return std::bit_cast<Lanes>(a == b); }
Lanes either(Lanes mask, Lanes a, Lanes b) { return (a & mask) | (b & ~mask); }
Lanes leastOf(Lanes a, Lanes b) { return either(less(a, b), a, b); }

/// Sixteen bytes that other threads may be writing.
Lanes loadLanes(const uint8_t* at) {
  typedef uint64_t Word __attribute__((may_alias));
  const auto* const words = reinterpret_cast<const Word*>(at);
  const uint64_t halves[] = {__atomic_load_n(words, __ATOMIC_RELAXED),
                             __atomic_load_n(words + 1, __ATOMIC_RELAXED)};
  Lanes lanes;
  std::memcpy(&lanes, halves, sizeof lanes);
  return lanes;
}

/// NextUse::ahead() of sixteen codes; `now` is the code of the present step.
Lanes aheadOf(Lanes codes, uint8_t now) {
  // 255 codes: where the difference goes below zero, one more is taken off.
  const Lanes distance = codes - now + less(codes, all(now));
  const Lanes unknown = equal(codes, all(0)) | less(all(NextUse::kMostAhead), distance);
  return either(unknown, all(NextUse::kUnknown), distance);
}

bool any(Lanes mask) {
  const auto halves = std::bit_cast<std::array<uint64_t, 2>>(mask);
  return (halves[0] | halves[1]) != 0;
}

/// The first lane of a mask that is set; there is one.
unsigned firstOf(Lanes mask) {
  const auto halves = std::bit_cast<std::array<uint64_t, 2>>(mask);
  const bool low = halves[0] != 0;
  return (low ? 0 : 8) + static_cast<unsigned>(std::countr_zero(halves[low ? 0 : 1])) / 8;
}

uint8_t leastOf(Lanes lanes) {
  uint8_t least = 255;
  for (unsigned i = 0; i < kLanes; ++i) least = std::min(least, lanes[i]);
  return least;
}

}  // namespace

// Belady's order as far as the future is known, from good to bad: rows with a known use, the
// soonest first; behind them the others, whose next use lies beyond, the most used first.
uint32_t RowPolicy::badness(uint64_t slot) const {
  if (kind(slot) != kSettled || needed(SlotIndex(slot))) return kKept;
  const uint32_t ahead = NextUse(load(&next_[slot])).ahead(now_);
  if (ahead != NextUse::kUnknown) return ahead;
  return NextUse::kUnknown + 255 - currentScore(slot);
}

// The first of those with the greatest badness() in a line, `most` of them; none if all are kept.
uint32_t RowPolicy::worstOfLine(uint64_t line, uint64_t* slots, uint32_t most) const {
  constexpr unsigned kParts = kSample / kLanes;
  constexpr auto kHalfAUse = static_cast<uint8_t>(kOneUse / 2);
  const uint8_t now = NextUse(now_).code();
  // Of those whose next use is not known, and of the others: which they are, and what the worst has
  // least of.
  Lanes unknown[kParts], known[kParts], used[kParts], nearness[kParts];
  Lanes any_unknown = all(0), any_known = all(0), least_used = all(255), least_near = all(255);
  for (unsigned i = 0; i < kParts; ++i) {
    const uint64_t at = line + i * kLanes;
    const Lanes hits = loadLanes(&hits_[at]);
    const Lanes lately = either(less(all(255 / kHalfAUse), hits), all(255), hits * kHalfAUse);
    const Lanes score = loadLanes(&score_[at]);
    used[i] = either(less(score, lately), lately, score);  // currentScore()
    const Lanes ahead = aheadOf(loadLanes(&next_[at]), now);
    nearness[i] = ~ahead;
    const Lanes held = ~equal(aheadOf(loadLanes(&hold_[at]), now), all(NextUse::kUnknown));
    const Lanes open = equal(loadLanes(&state_[at]) & 3, all(kSettled)) & ~held;
    unknown[i] = open & equal(ahead, all(NextUse::kUnknown));
    known[i] = open & ~unknown[i];
    any_unknown |= unknown[i];
    any_known |= known[i];
    least_used = leastOf(least_used, used[i] | ~unknown[i]);
    least_near = leastOf(least_near, nearness[i] | ~known[i]);
  }
  const bool beyond = any(any_unknown);
  if (!beyond && !any(any_known)) return 0;
  const Lanes least = all(leastOf(beyond ? least_used : least_near));
  uint32_t found = 0;
  for (unsigned i = 0; i < kParts && found < most; ++i) {
    Lanes worst =
        beyond ? equal(used[i], least) & unknown[i] : equal(nearness[i], least) & known[i];
    for (; found < most && any(worst); ++found) {
      const unsigned lane = firstOf(worst);
      worst[lane] = 0;
      slots[found] = line + i * kLanes + lane;
    }
  }
  return found;
}

// The worst of the next slots that are neighbours; of later ones if all of those are kept. Where
// several are equally bad, and there is room, they go after one another: looking is dear.
void RowPolicy::chooseVictims(uint32_t most) {
  const uint64_t end = roundUp(end_, kSample);
  uint64_t slots[kMostChosen];
  uint32_t found = 0;
  for (uint64_t turned = 0; turned < end && found == 0; turned += kSample) {
    const uint64_t next = victim_hand_ + kSample < end ? victim_hand_ + kSample : 0;
    victim_hand_ = next;
    found = worstOfLine(next, slots, most);
    // What the next line has is on its way until it is looked at.
    const uint64_t later = next + kSample < end ? next + kSample : 0;
    for (const uint8_t* bytes : {hits_, next_, hold_, score_, state_}) {
      __builtin_prefetch(bytes + later);
    }
  }
  for (uint32_t i = 0; i < found; ++i) {
    chosen_[(chosen_head_ + chosen_count_++) % kMostChosen] = slots[i];
  }
}

// Its turn is over: the slot is free, or has outlasted what it was compared with.
void RowPolicy::dropChosen() {
  chosen_head_ = (chosen_head_ + 1) % kMostChosen;
  --chosen_count_;
  refusals_ = 0;
}

// Several are chosen ahead of their turn; of few slots one, for it would be the same again.
uint64_t RowPolicy::victim() {
  while (chosen_count_ > 0 && (refusals_ >= kRefusals || badness(chosen_[chosen_head_]) == kKept)) {
    dropChosen();
  }
  const auto wanted =
      static_cast<uint32_t>(std::clamp<uint64_t>(capacity_ / (8 * kSample), 1, kMostChosen / 2));
  while (chosen_count_ < wanted) {
    const uint32_t before = chosen_count_;
    chooseVictims(wanted);
    if (chosen_count_ == before) break;
  }
  return chosen_count_ > 0 ? chosen_[chosen_head_] : kNone;
}

// A ring too short for the batches in flight leaves some to be found like others.
void RowPolicy::pass(uint64_t slot) {
  const uint64_t room = passingSlots(capacity_);
  if (passing_count_ == room) return;
  setState(slot, kPassing, 0);
  passing_[(passing_head_ + passing_count_++) % room] = static_cast<uint32_t>(slot);
}

uint64_t RowPolicy::takePassing() {
  if (passing_all_needed_) return kNone;
  const uint64_t room = passingSlots(capacity_);
  for (uint64_t tries = passing_count_; tries > 0; --tries) {
    const uint32_t slot = passing_[passing_head_];
    const bool passing = kind(slot) == kPassing;
    if (passing && !needed(SlotIndex(slot))) return slot;
    passing_head_ = passing_head_ + 1 < room ? passing_head_ + 1 : 0;
    if (passing) {
      passing_[(passing_head_ + passing_count_ - 1) % room] = slot;  // needed: its turn comes again
    } else {
      --passing_count_;  // left, or left and used for another row since
    }
  }
  passing_all_needed_ = passing_count_ > 0;
  return kNone;
}

std::optional<SlotIndex> RowPolicy::nextVictim() {
  uint64_t slot = takePassing();
  if (slot == kNone) slot = victim();
  if (slot == kNone && trial_count_ > 0) {
    settleAll();
    slot = victim();
  }
  if (slot == kNone) return std::nullopt;
  return SlotIndex(slot);
}

std::optional<SlotIndex> RowPolicy::likelyVictim(uint32_t turns) const {
  if (passing_count_ > turns && !passing_all_needed_) {
    const uint64_t at = passing_head_ + turns, room = passingSlots(capacity_);
    return SlotIndex(passing_[at < room ? at : at - room]);
  }
  if (turns >= chosen_count_) return std::nullopt;
  return SlotIndex(chosen_[(chosen_head_ + turns) % kMostChosen]);
}

}  // namespace tidepool
