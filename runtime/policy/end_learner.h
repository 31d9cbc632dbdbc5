// SPDX-License-Identifier: Apache-2.0
// Finds where a loop keeps the end of the index array that it goes through: in a register, in a
// word on the stack, or in what one of them points to (a std::vector). What lies behind the end
// belongs to others, and its values would be taken for indexes. Pure; not thread-safe; allocates
// at construction only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/policy/indirect_pattern.h"

namespace tidepool {

/// Where the end is: at a place, or in a word behind the address that is there.
struct EndPlace {
  static constexpr int16_t kDirect = -1;
  IndexPlace place;
  int16_t offset = kDirect;  // bytes from the address to the word

  /// Null if it cannot be had now.
  uint64_t addressIn(const FaultView& fault) const;
};

class EndLearner {
 public:
  // Ends that are further away matter little.
  static constexpr uint64_t kFarthest = 65536;
  static constexpr uint32_t kLessons = 16;  // faults, after which there is an answer

  EndLearner();

  /// Forgets everything: faults of another loop come next.
  void restart();
  /// The loop is at `element` of an array of so wide elements. After kLessons of these done() is
  /// true. Reads memory at most 1 + IndexPlace::kSingle times.
  void learn(const FaultView& fault, uint64_t element, const IndirectPattern& pattern);
  bool done() const { return lessons_ >= kLessons; }
  /// The nearest of the ends that were right each time; none if there is none.
  std::optional<EndPlace> answer() const;

 private:
  static constexpr size_t kWordsBehind = 4;
  static constexpr size_t kWays = 1 + kWordsBehind;  // the address itself, and words behind it
  // Of the same array, so often at least: an end stays while the loop goes on.
  static constexpr uint32_t kStays = 4;

  struct Candidate {
    bool wrong = false;
    uint32_t stays = 0;
    uint64_t end = 0;
    uint64_t distances = 0;  // their sum
  };
  void weigh(Candidate& candidate, uint64_t end, uint64_t element, const IndirectPattern& pattern);

  std::unique_ptr<std::array<Candidate, IndexPlace::kSingle * kWays>> candidates_;
  uint64_t element_ = 0;  // of the lesson before
  uint32_t lessons_ = 0;
};

/// Elements from `element` on up to the end, itself included; 0: it cannot be the end.
uint64_t elementsBefore(uint64_t end, uint64_t element, const IndirectPattern& pattern);

}  // namespace tidepool
