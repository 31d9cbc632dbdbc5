// SPDX-License-Identifier: Apache-2.0
// Finds the pattern behind the faults of one instruction. Two faults whose targets and whose values
// at a place differ give a stride; faults that agree on it settle the pattern. Pure; not
// thread-safe; allocates at construction only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/policy/indirect_pattern.h"

namespace tidepool {

class PatternLearner {
 public:
  static constexpr uint32_t kAgree = 8;
  // Rows of more bytes are found by the scan within them.
  static constexpr int64_t kMostStride = 65536;
  // Longer ways from one element to the next are taken for another array's.
  static constexpr int64_t kMostStep = 4096;

  PatternLearner();

  /// Forgets everything: faults of another instruction come next.
  void restart();
  /// Takes in one more fault of the instruction, whose address could be one (couldBeAddress()); all
  /// must be of one thread. A pattern is returned once it is settled. Reads memory at most 1 +
  /// IndexPlace::kCount times, 768 bytes at most each.
  std::optional<IndirectPattern> learn(const FaultView& fault);

 private:
  // What an element may be, relative to its place: pointers are also looked for around it.
  struct Kind {
    int16_t offset;
    uint8_t width;
  };
  static constexpr std::array<Kind, 4> kKinds = {{{0, 4}, {-4, 4}, {0, 8}, {-8, 8}}};
  static constexpr int kBefore = 4, kAfter = 5;  // words around a place
  static constexpr size_t kWords = kBefore + kAfter;
  static constexpr size_t kGuesses = 2;
  static constexpr uint32_t kMoves = 4;  // from which a step can be told
  // A pointer points to the beginning of what is touched, or so far before it.
  static constexpr uint64_t kNear = 256;

  struct Guess {
    int64_t stride = 0;
    uint32_t votes = 0;
  };
  struct State {
    uint64_t at = 0;       // 0: nothing could be read at the last fault
    uint64_t address = 0;  // what was touched first with the place there
    uint64_t step = 0;     // greatest common divisor of those seen
    uint32_t up = 0, down = 0;
    std::array<int64_t, kKinds.size()> values{};
    std::array<std::array<Guess, kGuesses>, kKinds.size()> guesses{};
    std::array<uint32_t, kWords> pointers{};  // faults that the word there points to
  };

  void move(State& state, uint64_t at) const;
  /// Whether the guess has settled.
  static bool vote(std::array<Guess, kGuesses>& guesses, int64_t stride);
  std::optional<IndirectPattern> compare(State& state, const FaultSample& sample, size_t place,
                                         const std::array<int64_t, kKinds.size()>& values);
  std::optional<IndirectPattern> findPointer(State& state, const FaultSample& sample, size_t place,
                                             std::span<const std::byte> around);
  static int64_t stepOf(const State& state, int64_t otherwise);

  std::unique_ptr<std::array<State, IndexPlace::kCount>> states_;
};

}  // namespace tidepool
