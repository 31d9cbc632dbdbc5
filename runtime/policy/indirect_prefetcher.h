// SPDX-License-Identifier: Apache-2.0
// Indirect prefetch: says which far pages a gather loop (x[index[i]], or *pointer[i]) will touch
// next, from the registers that its threads had when they faulted. Each instruction that faults is
// followed by itself. How far ahead it looks depends on how often it was right: of all pages that
// it foretells some are left out, and those that the program then touches show it. Pure; not
// thread-safe: one owner. Allocates at construction only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/units.h"
#include "runtime/policy/end_learner.h"
#include "runtime/policy/indirect_pattern.h"
#include "runtime/policy/pattern_learner.h"

namespace tidepool {

struct IndirectStats {
  uint64_t foretold = 0;  // pages that were given out to be fetched
  /// Of them, those that the program used, by the sample of pages that were left out.
  uint64_t used = 0;
};

class IndirectPrefetcher {
 public:
  static constexpr size_t kInstructions = 64;  // followed at once; the longest unused goes
  // One that is understood counts as used so many faults later: those that fault a few times each
  // do not drive out what many pages are foretold by.
  static constexpr uint64_t kUnderstood = 65536;
  static constexpr size_t kLearning = 4;      // of them, those whose pattern is being looked for
  static constexpr uint32_t kLeastAhead = 8;  // elements
  static constexpr uint32_t kMostAhead = 512;
  static constexpr size_t kMostPages = 2 * kMostAhead;

  enum class Result : uint8_t {
    kNothing,  // neither of the below: a fault that was not worth its sample
    kLearning,
    kForetold,  // of an instruction that is understood
  };

  IndirectPrefetcher();

  /// A thread faulted on a far page; all such faults of which there is a sample are to be told.
  /// Reads memory once for each word and window it needs, at most 4 times kPatterns; while it
  /// learns as often as PatternLearner does, for at most kLessons faults at a time.
  /// At most `most` pages are foretold: what finds no room is for a later fault.
  Result onFault(const FaultSample& sample, const MemoryView& memory, size_t most = kMostPages);
  /// Addresses of pages, far all, that the last onFault() foretold, soonest first.
  std::span<const uint64_t> foretold() const { return {pages_.data(), page_count_}; }
  /// What local memory holds. A page that is foretold has to be used while it is likely to be there
  /// still: one that is used later has only pushed others out.
  void setLocal(PageCount pages) {
    marker_life_ = std::clamp(pages.value() / kLifeShare, kLeastMarkerLife, kMostMarkerLife);
  }
  /// Faults have not been told for a while: what time that saved may go into a few lessons.
  void resume() { lessons_left_ = std::max(lessons_left_, kLessonsAfterPause); }

  const IndirectStats& stats() const { return stats_; }

 private:
  static constexpr size_t kPatterns = 4;  // an instruction
  static constexpr size_t kBases = 32;    // tables that one pattern goes through
  static constexpr size_t kCursors = 4;   // threads that do
  static constexpr size_t kMarkers = 256;
  // Fewer faults of an instruction are not worth learning from.
  static constexpr uint32_t kWorthwhile = 16;
  static constexpr uint32_t kLessons = 64;
  // A lesson takes as long as several faults (100 us): of all faults, so few at most, and some at
  // first and after a pause.
  static constexpr uint32_t kMostLessons = 128;
  static constexpr uint32_t kLessonsAfterPause = 64;
  static constexpr uint64_t kFaultsALesson = 256;
  static constexpr uint32_t kLongestLesson = 2048;  // faults until a learner is for others again
  // Faults, and doublings: to 65,536, in which a lesson in vain costs next to nothing. The code
  // that compares keys is the same in all of a sort, and can be foretold in its long merges alone.
  static constexpr uint64_t kFirstRest = 4096;
  static constexpr uint32_t kMostRests = 4;
  static constexpr size_t kWindowBytes = 16384;
  // Of so many pages one is left out, or of half a window if that is more.
  static constexpr uint32_t kMarkEvery = 16;
  // Faults within which a page has to be used.
  static constexpr uint64_t kLifeShare = 8, kLeastMarkerLife = 64, kMostMarkerLife = 4096;
  static constexpr uint32_t kTurn = 8;        // moves the other way, in a row, that turn a step
  static constexpr uint32_t kEndLessons = 2;  // tries to find where the end is kept
  static constexpr uint32_t kMostEndMisses = 3;
  static constexpr uint32_t kJudged = 8;  // markers, after which the window changes
  static constexpr uint32_t kSure = 4;    // of them, if all were right

  struct Base {
    int64_t address = 0;
    uint32_t seen = 0;
    uint64_t used_at = 0;
  };
  /// How far ahead of a thread's loop was looked.
  struct Cursor {
    int thread = 0;
    int64_t base = 0;
    uint64_t end = 0;   // of the index array; 0: not known
    uint64_t next = 0;  // element to look at next
    uint64_t used_at = 0;
    uint64_t at = 0;  // element of the last fault
  };
  struct Followed {
    IndirectPattern pattern;
    std::optional<EndPlace> end;
    uint32_t end_lessons = kEndLessons;  // left
    uint32_t end_misses = 0;             // faults behind what was taken for the end
    uint32_t backwards = 0;              // moves against the step, in a row
    bool whole_rows = false;             // the loop faulted within a row too: all of it is read
    std::array<Base, kBases> bases{};
    std::array<Cursor, kCursors> cursors{};
  };
  struct Instruction {
    uint64_t code = 0;  // 0: free
    uint64_t rests_until = 0;
    uint32_t unexplained = 0;  // faults, of late
    uint32_t rests = 0;
    uint32_t ahead = kLeastAhead;
    uint32_t since_marker = 0;
    uint32_t hits = 0, misses = 0;
    size_t pattern_count = 0;
    std::array<Followed, kPatterns> patterns{};
  };
  struct Lesson {
    uint64_t code = 0;  // 0: the learner is free
    int thread = 0;
    uint32_t faults = 0;  // that it was given
    uint64_t begun_at = 0;
    PatternLearner learner;
  };
  /// What looks for the end of a loop's index array, and for which.
  struct EndLesson {
    uint64_t code = 0;  // 0: it is free
    size_t pattern = 0;
    int thread = 0;
    uint64_t begun_at = 0;
    EndLearner learner;
  };
  /// A page that was left out.
  struct Marker {
    uint64_t code = 0;
    uint32_t stands_for = 0;
    uint64_t born_at = 0;
  };

  Instruction* find(uint64_t code);  // null: it is not followed
  Instruction& follow(uint64_t code);
  bool foretell(Instruction& instruction, Followed& followed, const FaultView& fault);
  static void refineStep(Followed& followed, uint64_t last, uint64_t element);
  /// Where the array ends that `element` is in; 0 if that is not known.
  uint64_t endOf(const Instruction& instruction, Followed& followed, const FaultView& fault,
                 uint64_t element);
  void learnEnd(const Instruction& instruction, Followed& followed, const FaultView& fault,
                uint64_t element);
  /// The base that the address belongs to, if there is one to go by.
  std::optional<int64_t> knownBase(Followed& followed, int64_t base) const;
  Cursor& cursorOf(Followed& followed, int thread) const;
  void look(Instruction& instruction, const Followed& followed, Cursor& cursor, uint64_t element,
            const MemoryView& memory);
  void add(Instruction& instruction, uint64_t target, int64_t size, const MemoryView& memory);
  void addPage(Instruction& instruction, uint64_t page, const MemoryView& memory);
  size_t markerOf(uint64_t page) const;  // kMarkers: it has none
  void mark(Instruction& instruction, uint64_t page);
  void settleMarkers(uint64_t page);
  void settle(size_t number, bool hit);
  static void judge(Instruction& instruction, uint64_t now);
  Result learn(Instruction& instruction, const FaultView& fault);
  Lesson* lessonFor(const Instruction& instruction, const FaultSample& sample);
  static void rest(Instruction& instruction, uint64_t now);

  std::vector<Instruction> instructions_;
  // Of each, in rows of their own, since they are searched at every fault.
  std::array<uint64_t, kInstructions> codes_{}, used_at_{};  // `used_at_`: see kUnderstood
  std::vector<Lesson> lessons_;
  EndLesson end_lesson_;
  // A ring, the oldest first; their pages in a row of their own, which is searched often.
  std::array<Marker, kMarkers> markers_{};
  std::array<uint64_t, kMarkers> marked_pages_{};  // 0: settled
  uint64_t first_marker_ = 0, next_marker_ = 0;
  uint64_t marker_life_ = kMostMarkerLife;
  std::vector<uint64_t> pages_;
  size_t page_count_ = 0, most_pages_ = 0;
  std::vector<std::byte> window_;
  uint64_t now_ = 0;  // faults told
  uint32_t lessons_left_ = kMostLessons;
  IndirectStats stats_;
};

}  // namespace tidepool
