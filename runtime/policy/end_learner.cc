// SPDX-License-Identifier: Apache-2.0
// One pass over the places a fault. See end_learner.h.
#include "runtime/policy/end_learner.h"

#include "runtime/base/debug_check.h"

namespace tidepool {

uint64_t EndPlace::addressIn(const FaultView& fault) const {
  const uint64_t address = place.addressIn(fault);
  if (offset == kDirect || address == 0) return address;
  uint64_t word = 0;
  const uint64_t at = address + static_cast<uint64_t>(offset);
  const size_t got = fault.memory.read(at, std::as_writable_bytes(std::span(&word, 1)));
  return got == sizeof word && couldBeAddress(word) ? word : 0;
}

uint64_t elementsBefore(uint64_t end, uint64_t element, const IndirectPattern& pattern) {
  TP_DCHECK(pattern.step != 0 && pattern.width != 0);  // divided by
  // A loop downwards ends at the array's first element, which it reads.
  const bool up = pattern.step > 0;
  if (up ? end <= element : end > element) return 0;
  const uint64_t distance = up ? end - element : element - end;
  const uint64_t step = static_cast<uint64_t>(up ? pattern.step : -pattern.step);
  if (distance > EndLearner::kFarthest || distance % pattern.width != 0) return 0;
  return up ? (distance + step - 1) / step : distance / step + 1;
}

EndLearner::EndLearner()
    : candidates_(std::make_unique<std::array<Candidate, IndexPlace::kSingle * kWays>>()) {}

void EndLearner::restart() {
  candidates_->fill(Candidate{});
  element_ = 0;
  lessons_ = 0;
}

void EndLearner::weigh(Candidate& candidate, uint64_t end, uint64_t element,
                       const IndirectPattern& pattern) {
  const uint64_t left = elementsBefore(end, element, pattern);
  if (left == 0) {
    candidate.wrong = true;
    return;
  }
  // What moves with the loop is no end, so what stays counts.
  if (end == candidate.end && element != element_) ++candidate.stays;
  candidate.end = end;
  candidate.distances += left;
}

void EndLearner::learn(const FaultView& fault, uint64_t element, const IndirectPattern& pattern) {
  for (size_t place = 0; place < IndexPlace::kSingle; ++place) {
    Candidate* const ways = &(*candidates_)[place * kWays];
    const uint64_t at = IndexPlace(place).addressIn(fault);
    if (!ways[0].wrong) weigh(ways[0], at, element, pattern);
    std::array<uint64_t, kWordsBehind> words{};
    bool any = false;
    for (size_t way = 1; way < kWays; ++way) any = any || !ways[way].wrong;
    if (!any) continue;
    if (at != 0) fault.memory.read(at, std::as_writable_bytes(std::span(words)));
    for (size_t way = 1; way < kWays; ++way) {
      if (!ways[way].wrong) weigh(ways[way], words[way - 1], element, pattern);
    }
  }
  element_ = element;
  TP_DCHECK_OP(lessons_, <, kLessons);
  ++lessons_;
}

std::optional<EndPlace> EndLearner::answer() const {
  const Candidate* best = nullptr;
  for (const Candidate& each : *candidates_) {
    if (each.wrong || each.stays < kStays) continue;
    if (best == nullptr || each.distances < best->distances) best = &each;
  }
  if (best == nullptr) return std::nullopt;
  const auto number = static_cast<size_t>(best - candidates_->data());
  const auto way = static_cast<int>(number % kWays);
  return EndPlace{IndexPlace(number / kWays),
                  static_cast<int16_t>(way == 0 ? EndPlace::kDirect : (way - 1) * 8)};
}

}  // namespace tidepool
