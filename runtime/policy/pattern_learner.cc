// SPDX-License-Identifier: Apache-2.0
// One pass over the places a fault. See pattern_learner.h.
#include "runtime/policy/pattern_learner.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/debug_check.h"

namespace tidepool {

PatternLearner::PatternLearner()
    : states_(std::make_unique<std::array<State, IndexPlace::kCount>>()) {}

void PatternLearner::restart() { states_->fill(State{}); }

void PatternLearner::move(State& state, uint64_t at) const {
  const bool up = at > state.at;
  const uint64_t step = up ? at - state.at : state.at - at;
  if (step > kMostStep) return;
  state.step = std::gcd(state.step, step);
  ++(up ? state.up : state.down);
}

int64_t PatternLearner::stepOf(const State& state, int64_t otherwise) {
  const auto step = static_cast<int64_t>(state.step);
  // Elements do not overlap: what is less comes of arrays that lie side by side.
  const int64_t size = std::max(step, otherwise);
  return state.up >= state.down ? size : -size;
}

// The majority vote of Misra and Gries: a stride that more than a third of the faults agree on
// wins.
bool PatternLearner::vote(std::array<Guess, kGuesses>& guesses, int64_t stride) {
  for (Guess& guess : guesses) {
    if (guess.votes > 0 && guess.stride == stride) return ++guess.votes >= kAgree;
  }
  for (Guess& guess : guesses) {
    if (guess.votes > 0) continue;
    guess = {stride, 1};
    return false;
  }
  for (Guess& guess : guesses) {
    TP_DCHECK_OP(guess.votes, >, 0u);
    --guess.votes;
  }
  return false;
}

std::optional<IndirectPattern> PatternLearner::compare(
    State& state, const FaultSample& sample, size_t place,
    const std::array<int64_t, kKinds.size()>& values) {
  TP_DCHECK(state.at != 0);  // or there would be nothing to compare with
  const auto distance = static_cast<int64_t>(sample.address - state.address);
  for (size_t kind = 0; kind < kKinds.size(); ++kind) {
    int64_t difference;
    if (__builtin_sub_overflow(values[kind], state.values[kind], &difference) || difference == 0 ||
        distance % difference != 0) {
      continue;
    }
    const int64_t stride = distance / difference;
    if (stride == 0 || stride > kMostStride || stride < -kMostStride) continue;
    if (!vote(state.guesses[kind], stride) || state.up + state.down < kMoves) continue;
    const Kind found = kKinds[kind];
    return IndirectPattern{IndexPlace(place), found.offset, found.width, stride,
                           stepOf(state, found.width)};
  }
  return std::nullopt;
}

std::optional<IndirectPattern> PatternLearner::findPointer(State& state, const FaultSample& sample,
                                                           size_t place,
                                                           std::span<const std::byte> around) {
  TP_DCHECK_OP(around.size(), ==, kWords * 8);
  for (size_t word = 0; word < kWords; ++word) {
    const auto pointer = static_cast<uint64_t>(indexValue(&around[word * 8], 8));
    if (sample.address - pointer >= kNear) continue;
    if (++state.pointers[word] < kAgree || state.step < 8 || state.step % 8 != 0) continue;
    const auto offset = static_cast<int16_t>((static_cast<int>(word) - kBefore) * 8);
    return IndirectPattern{IndexPlace(place), offset, 8, 1, stepOf(state, 8)};
  }
  return std::nullopt;
}

std::optional<IndirectPattern> PatternLearner::learn(const FaultView& fault) {
  const FaultSample& sample = fault.sample;
  std::optional<IndirectPattern> found;
  for (size_t place = 0; place < IndexPlace::kCount; ++place) {
    State& state = (*states_)[place];
    const uint64_t at = IndexPlace(place).addressIn(fault);
    // Around a single word 72 bytes are read, of a pair 16: index arrays, not structures.
    const size_t before = place < IndexPlace::kSingle ? kBefore * 8 : 8;
    std::array<std::byte, kWords * 8> bytes;
    const size_t wanted = place < IndexPlace::kSingle ? bytes.size() : 16;
    if (at == 0 || fault.memory.read(at - before, std::span(bytes).first(wanted)) != wanted) {
      state.at = 0;
      continue;
    }
    std::array<int64_t, kKinds.size()> values;
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
      values[kind] =
          indexValue(&bytes[before + static_cast<size_t>(kKinds[kind].offset)], kKinds[kind].width);
    }
    // A place that stays where it is says nothing: the loop may be going through one long row.
    if (at == state.at) continue;
    if (state.at != 0) {
      move(state, at);
      if (!found) found = compare(state, sample, place, values);
      if (!found && place < IndexPlace::kSingle) found = findPointer(state, sample, place, bytes);
    }
    state.at = at;
    state.address = sample.address;
    state.values = values;
  }
  return found;
}

}  // namespace tidepool
