// SPDX-License-Identifier: Apache-2.0
// How the counts of rows age, and how fast: RowPolicy's clock is the miss. Each miss ages a few
// slots and lines of the sketch, so that all have their turn once an age. A part of row_policy.h.
#include <algorithm>
#include <cmath>

#include "allocator/policy/row_policy.h"

namespace tidepool {
namespace {

// An age becomes shorter fast and longer slowly, as a share of itself in its course.
constexpr double kShrinks = 1.0;
constexpr double kGrows = 0.2;

// A row used so often an age is not left out of one by chance.
constexpr double kOftenUsed = 5;
constexpr double kLeavingMemory = 1.0 / 1024;  // of such rows
constexpr double kLeastLeaving = 0.01;         // an age: any row may go out of use

}  // namespace

void RowPolicy::advanceAges() {
  age_ *= wanted_age_ < age_ ? 1 / (1 + kShrinks / age_) : 1 + kGrows / age_;
  // A table that grew smaller is aged to its end until the slots there are free.
  const uint64_t slots = std::max(capacity_, end_);
  for (slots_due_ += static_cast<double>(slots) / age_; slots_due_ >= 1; slots_due_ -= 1) {
    age_hand_ = age_hand_ + 1 < slots ? age_hand_ + 1 : 0;
    ageSlot(age_hand_);
  }
  lines_due_ += static_cast<double>(sketch_.lines()) / age_;
  for (; lines_due_ >= 1; lines_due_ -= 1) sketch_.halveOne();
}

void RowPolicy::ageSlot(uint64_t slot) {
  if (kind(slot) != kSettled) return;
  const double uses = load(&hits_[slot]);
  store(&hits_[slot], 0);
  score_[slot] = rounded(agedScore(slot, uses));
  if (ages(slot) < kGrownUp) setState(slot, kSettled, ages(slot) + 1);
}

// The mean of a row's uses an age, in which young rows' last ones weigh more. A row that went
// without any is either unlucky, or out of use for good: the less likely the former, the more it
// loses.
double RowPolicy::agedScore(uint64_t slot, double uses) {
  static constexpr double kYoung[kGrownUp] = {0, 0.5, 0.33, 0.25, 0.2};
  const double score = score_[slot];
  const double now = uses * kOneUse;
  const unsigned age = ages(slot);
  if (age == 0) return std::max(score, now);  // not all of an age has passed since it came
  const double gain = age < kGrownUp ? kYoung[age] : mixed(config_.tuning.gain);
  const double unlucky = unused_[score_[slot]];
  if (age >= 3 && score >= kOftenUsed * kOneUse) noteLeaving(unlucky, uses == 0 ? 1 : 0);
  if (uses == 0) {
    const double leaving =
        std::clamp(leaving_ * age_ / static_cast<double>(capacity_), kLeastLeaving, 0.9);
    return score * (1 - gain) * (1 - leaving / (leaving + (1 - leaving) * unlucky));
  }
  if (now > 2 * (score + kOneUse)) return (score + now) / 2;  // hot all of a sudden
  return score + (now - score) * gain;
}

// Often used rows that go without use more often than chance explains: the hot set moves.
void RowPolicy::noteLeaving(double expected, double seen) {
  const RowTuning& tuning = config_.tuning;
  const auto slots = static_cast<double>(capacity_);
  leaving_ += ((seen - expected) * slots / age_ - leaving_) * kLeavingMemory;
  const double least = tuning.leaving[0], most = tuning.leaving[1];
  const double leaving = std::clamp(leaving_, least, most);
  restless_ = std::log(leaving / least) / std::log(most / least);
  wanted_age_ = tuning.age[0] * std::pow(tuning.age[1] / tuning.age[0], restless_) * slots;
}

// Rounded up as often as the fraction says, so that small gains and losses add up. A golden-ratio
// sequence in place of chance.
uint8_t RowPolicy::rounded(double score) {
  dither_ += 0x9e3779b97f4a7c15ull;
  const double fraction = static_cast<double>(dither_ >> 11) * 0x1p-53;
  return static_cast<uint8_t>(std::clamp(std::floor(score + fraction), 0.0, 255.0));
}

}  // namespace tidepool
