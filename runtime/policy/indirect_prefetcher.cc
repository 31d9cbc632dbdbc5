// SPDX-License-Identifier: Apache-2.0
// Following instructions, looking ahead, and judging what came of it. See indirect_prefetcher.h.
#include "runtime/policy/indirect_prefetcher.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "runtime/base/debug_check.h"
#include "runtime/base/units.h"

namespace tidepool {
namespace {

constexpr uint64_t pageOf(uint64_t address) { return address & ~(kPageSize - 1); }

}  // namespace

IndirectPrefetcher::IndirectPrefetcher()
    : instructions_(kInstructions),
      lessons_(kLearning),
      pages_(kMostPages),
      window_(kWindowBytes) {}

IndirectPrefetcher::Instruction* IndirectPrefetcher::find(uint64_t code) {
  const auto found = std::find(codes_.begin(), codes_.end(), code);
  return found == codes_.end() ? nullptr
                               : &instructions_[static_cast<size_t>(found - codes_.begin())];
}

IndirectPrefetcher::Instruction& IndirectPrefetcher::follow(uint64_t code) {
  auto found = std::find(codes_.begin(), codes_.end(), code);
  const bool known = found != codes_.end();
  if (!known)
    found =
        codes_.begin() + (std::min_element(used_at_.begin(), used_at_.end()) - used_at_.begin());
  const auto number = static_cast<size_t>(found - codes_.begin());
  if (!known) instructions_[number] = Instruction{.code = code};
  codes_[number] = code;
  used_at_[number] = now_ + (instructions_[number].pattern_count > 0 ? kUnderstood : 0);
  return instructions_[number];
}

IndirectPrefetcher::Result IndirectPrefetcher::onFault(const FaultSample& sample,
                                                       const MemoryView& memory, size_t most) {
  page_count_ = 0;
  most_pages_ = std::min(most, pages_.size() - 2);  // an element may need two

  if (sample.code == 0 || !couldBeAddress(sample.address)) return Result::kNothing;
  ++now_;
  if (now_ % kFaultsALesson == 0) lessons_left_ = std::min(lessons_left_ + 1, kMostLessons);
  settleMarkers(pageOf(sample.address));
  Instruction& instruction = follow(sample.code);
  if (now_ < instruction.rests_until) return Result::kNothing;
  const FaultView fault(sample, memory);
  bool explained = false;
  for (size_t i = 0; i < instruction.pattern_count && !explained; ++i) {
    explained = foretell(instruction, instruction.patterns[i], fault);
  }
  if (explained) {
    instruction.unexplained /= 2;
    return Result::kForetold;
  }
  ++instruction.unexplained;
  return learn(instruction, fault);
}

// --- Looking ahead ---

bool IndirectPrefetcher::foretell(Instruction& instruction, Followed& followed,
                                  const FaultView& fault) {
  const FaultSample& sample = fault.sample;
  const IndirectPattern& pattern = followed.pattern;
  const uint64_t place = pattern.place.addressIn(fault);
  const uint64_t element = place + static_cast<uint64_t>(int64_t{pattern.offset});
  if (place == 0 || !couldBeAddress(element)) return false;
  std::array<std::byte, 8> bytes;
  const auto value_bytes = std::span(bytes).first(pattern.width);
  if (fault.memory.read(element, value_bytes) != pattern.width) return false;
  const auto reckoned =
      baseOf(sample.address, indexValue(bytes.data(), pattern.width), pattern.stride);
  if (!reckoned) return false;
  const auto base = knownBase(followed, *reckoned);
  if (!base) return false;
  if (*reckoned > *base) followed.whole_rows = true;
  Cursor& cursor = cursorOf(followed, sample.thread);
  cursor.used_at = now_;
  if (cursor.base == *base && cursor.at != 0) refineStep(followed, cursor.at, element);
  const int64_t left = static_cast<int64_t>(cursor.next - element) / pattern.step;
  const uint64_t end = endOf(instruction, followed, fault, element);
  // A loop that is back where it was reads other values there.
  const uint64_t last = std::exchange(cursor.at, element);
  const bool onwards = pattern.step > 0 ? element >= last : element <= last;
  const bool goes_on = cursor.base == *base && cursor.end == end && cursor.next != 0 && onwards &&
                       left > 0 && left <= kMostAhead;
  // While more than half of the window is still ahead there is no hurry.
  if (goes_on && left > instruction.ahead / 2) return true;
  if (!goes_on) {
    const uint64_t next = element + static_cast<uint64_t>(pattern.step);
    cursor = {sample.thread, *base, end, next, now_, element};
  }
  look(instruction, followed, cursor, element, fault.memory);
  return true;
}

// What few faults taught may be too long a step, or the wrong way: a merge goes through short runs
// before it goes through long ones.
void IndirectPrefetcher::refineStep(Followed& followed, uint64_t last, uint64_t element) {
  int64_t& step = followed.pattern.step;
  const auto move = static_cast<int64_t>(element - last);
  if (move == 0 || std::abs(move) > PatternLearner::kMostStep) return;
  followed.backwards = (move > 0) == (step > 0) ? 0 : followed.backwards + 1;
  if (followed.backwards == kTurn) {
    step = -step;
    followed.backwards = 0;
  }
  const int64_t size = std::max<int64_t>(std::gcd(step, move), followed.pattern.width);
  step = step > 0 ? size : -size;
}

uint64_t IndirectPrefetcher::endOf(const Instruction& instruction, Followed& followed,
                                   const FaultView& fault, uint64_t element) {
  if (!followed.end) {
    if (followed.end_lessons > 0) learnEnd(instruction, followed, fault, element);
    return 0;
  }
  const uint64_t end = followed.end->addressIn(fault);
  if (elementsBefore(end, element, followed.pattern) > 0) {
    followed.end_misses = 0;
    return end;
  }
  if (++followed.end_misses == kMostEndMisses) followed.end.reset();
  return 0;
}

void IndirectPrefetcher::learnEnd(const Instruction& instruction, Followed& followed,
                                  const FaultView& fault, uint64_t element) {
  EndLesson& lesson = end_lesson_;
  const auto pattern = static_cast<size_t>(&followed - instruction.patterns.data());
  if (lesson.code == 0 || now_ - lesson.begun_at > kLongestLesson) {
    lesson.code = instruction.code;
    lesson.pattern = pattern;
    lesson.thread = fault.sample.thread;
    lesson.begun_at = now_;
    lesson.learner.restart();
  }
  if (lesson.code != instruction.code || lesson.pattern != pattern ||
      lesson.thread != fault.sample.thread) {
    return;
  }
  lesson.learner.learn(fault, element, followed.pattern);
  if (!lesson.learner.done()) return;
  lesson.code = 0;
  --followed.end_lessons;
  followed.end = lesson.learner.answer();

  followed.end_misses = 0;
}

// A fault within a row, where it crosses into another page, gives a base that is too high by less
// than a row; and only a base that came before is believed.
std::optional<int64_t> IndirectPrefetcher::knownBase(Followed& followed, int64_t base) const {
  if (followed.pattern.isPointers()) {
    constexpr int64_t kMostField = 4096;
    if (base < 0 || base >= kMostField) return std::nullopt;
    return 0;  // where the structure begins
  }
  const int64_t row = std::max<int64_t>(std::abs(followed.pattern.stride), 1);
  Base* oldest = &followed.bases[0];
  for (Base& known : followed.bases) {
    int64_t above;
    if (known.seen > 0 && !__builtin_sub_overflow(base, known.address, &above) && above > -row &&
        above < row) {
      if (above < 0 && known.seen < PatternLearner::kAgree) known.address = base;
      known.used_at = now_;
      ++known.seen;
      return known.address;
    }
    if (known.used_at < oldest->used_at) oldest = &known;
  }
  *oldest = {base, 1, now_};
  return std::nullopt;
}

IndirectPrefetcher::Cursor& IndirectPrefetcher::cursorOf(Followed& followed, int thread) const {
  Cursor* oldest = &followed.cursors[0];
  for (Cursor& cursor : followed.cursors) {
    if (cursor.next != 0 && cursor.thread == thread) return cursor;
    if (cursor.used_at < oldest->used_at) oldest = &cursor;
  }
  *oldest = Cursor{};
  return *oldest;
}

void IndirectPrefetcher::look(Instruction& instruction, const Followed& followed, Cursor& cursor,
                              uint64_t element, const MemoryView& memory) {
  const IndirectPattern& pattern = followed.pattern;
  const bool up = pattern.step > 0;
  const uint64_t step = static_cast<uint64_t>(up ? pattern.step : -pattern.step);
  const uint64_t passed = (up ? cursor.next - element : element - cursor.next) / step;  // 1: none
  uint64_t count = instruction.ahead + 1 - std::min<uint64_t>(passed, instruction.ahead);
  if (cursor.end != 0) count = std::min(count, elementsBefore(cursor.end, cursor.next, pattern));
  count = std::min(count, (kWindowBytes - pattern.width) / step + 1);
  // Memory can be read up to a page that is absent: upwards from `next`, downwards to it.
  for (; count > 0; count /= 2) {
    const uint64_t bytes = (count - 1) * step + pattern.width;
    TP_CHECK_OP(bytes, <=, window_.size());
    const uint64_t from = up ? cursor.next : cursor.next - (count - 1) * step;
    if (!couldBeAddress(from)) return;
    const size_t got = memory.read(from, std::span(window_).first(bytes));
    if (got == bytes) break;
    if (up && got >= pattern.width) {
      count = (got - pattern.width) / step + 1;
      break;
    }
  }
  const int64_t row = std::min<int64_t>(std::abs(pattern.stride), kPageSize);
  const int64_t size = followed.whole_rows ? row : 1;
  for (uint64_t i = 0; i < count; ++i) {
    if (page_count_ >= most_pages_) {
      count = i;
      break;
    }
    const uint64_t at = (up ? i : count - 1 - i) * step;
    const int64_t value = indexValue(&window_[at], pattern.width);
    if (const auto target = targetOf(cursor.base, value, pattern.stride)) {
      add(instruction, *target, size, memory);
    }
  }
  cursor.next += static_cast<uint64_t>(pattern.step) * count;
}

void IndirectPrefetcher::add(Instruction& instruction, uint64_t target, int64_t size,
                             const MemoryView& memory) {
  const uint64_t first = pageOf(target);
  const uint64_t last = pageOf(target + static_cast<uint64_t>(size) - 1);
  addPage(instruction, first, memory);
  if (last != first) addPage(instruction, last, memory);
}

void IndirectPrefetcher::addPage(Instruction& instruction, uint64_t page,
                                 const MemoryView& memory) {
  if (!memory.isFar(page) || markerOf(page) < kMarkers) return;
  // Neighbours in an index are often neighbours in the table; others that come twice cost a look.
  const auto recent = foretold().last(std::min<size_t>(page_count_, 8));
  if (std::find(recent.begin(), recent.end(), page) != recent.end()) return;
  if (instruction.since_marker >= std::max(kMarkEvery, instruction.ahead / 2)) {
    mark(instruction, page);
    return;
  }
  ++instruction.since_marker;
  ++stats_.foretold;
  TP_CHECK_OP(page_count_, <, pages_.size());
  pages_[page_count_++] = page;
}

// --- Judging ---

size_t IndirectPrefetcher::markerOf(uint64_t page) const {
  return static_cast<size_t>(std::find(marked_pages_.begin(), marked_pages_.end(), page) -
                             marked_pages_.begin());
}

void IndirectPrefetcher::mark(Instruction& instruction, uint64_t page) {
  if (next_marker_ - first_marker_ == kMarkers) settle(first_marker_++ % kMarkers, false);
  TP_DCHECK_OP(next_marker_ - first_marker_, <, kMarkers);
  const size_t marker = next_marker_++ % kMarkers;
  marked_pages_[marker] = page;
  markers_[marker] = {instruction.code, std::exchange(instruction.since_marker, 0), now_};
}

void IndirectPrefetcher::settleMarkers(uint64_t page) {
  if (const size_t marker = markerOf(page); marker < kMarkers) settle(marker, true);
  while (first_marker_ < next_marker_ &&
         now_ - markers_[first_marker_ % kMarkers].born_at > marker_life_) {
    settle(first_marker_++ % kMarkers, false);
  }
}

void IndirectPrefetcher::settle(size_t number, bool hit) {
  if (std::exchange(marked_pages_[number], 0) == 0) return;
  const Marker& marker = markers_[number];
  if (hit) stats_.used += marker.stands_for;
  Instruction* instruction = find(marker.code);
  if (instruction == nullptr) return;
  ++(hit ? instruction->hits : instruction->misses);
  const bool sure = instruction->misses == 0 && instruction->hits == kSure;
  if (sure || instruction->hits + instruction->misses == kJudged) judge(*instruction, now_);
}

// Up where nearly all was used, down where a third was not; where more than half was not, nothing
// is foretold for a while.
void IndirectPrefetcher::judge(Instruction& instruction, uint64_t now) {
  const uint32_t hits = std::exchange(instruction.hits, 0);
  const uint32_t misses = std::exchange(instruction.misses, 0);
  TP_DCHECK(instruction.ahead >= kLeastAhead && instruction.ahead <= kMostAhead);
  if (misses <= 1) {
    instruction.ahead = std::min(instruction.ahead * 2, kMostAhead);
    instruction.rests = 0;
    return;
  }
  if (misses == 2) return;
  if (hits * 2 < kJudged && instruction.ahead == kLeastAhead) return rest(instruction, now);
  instruction.ahead = std::max(instruction.ahead / 2, kLeastAhead);
}

void IndirectPrefetcher::rest(Instruction& instruction, uint64_t now) {
  instruction.rests_until = now + (kFirstRest << instruction.rests);
  instruction.rests = std::min(instruction.rests + 1, kMostRests);
  instruction.unexplained = 0;
}

// --- Learning ---

IndirectPrefetcher::Lesson* IndirectPrefetcher::lessonFor(const Instruction& instruction,
                                                          const FaultSample& sample) {
  Lesson* free = nullptr;
  for (Lesson& lesson : lessons_) {
    if (lesson.code == instruction.code) return &lesson;
    const bool over = lesson.code == 0 || now_ - lesson.begun_at > kLongestLesson;
    if (over && free == nullptr) free = &lesson;
  }
  if (free == nullptr) return nullptr;
  free->code = instruction.code;
  free->thread = sample.thread;
  free->faults = 0;
  free->begun_at = now_;
  free->learner.restart();
  return free;
}

IndirectPrefetcher::Result IndirectPrefetcher::learn(Instruction& instruction,
                                                     const FaultView& fault) {
  // With a pattern at hand only if it has come to explain little.
  const bool known = instruction.pattern_count > 0;
  // The fewer lessons are left, the more faults there have to be for one to begin.
  const uint32_t scarce = kMostLessons / std::max(lessons_left_, 1u);
  const uint32_t worthwhile = scarce * (known ? 4 * kWorthwhile : kWorthwhile);
  if (instruction.unexplained < worthwhile || instruction.pattern_count == kPatterns) {
    return Result::kNothing;
  }
  Lesson* lesson = lessons_left_ > 0 ? lessonFor(instruction, fault.sample) : nullptr;
  if (lesson == nullptr || lesson->thread != fault.sample.thread) return Result::kNothing;
  --lessons_left_;
  if (const auto found = lesson->learner.learn(fault)) {
    lesson->code = 0;
    const auto end = instruction.patterns.begin() + static_cast<long>(instruction.pattern_count);
    if (std::none_of(instruction.patterns.begin(), end,
                     [&](const Followed& each) { return each.pattern == *found; })) {
      TP_CHECK_OP(instruction.pattern_count, <, kPatterns);
      Followed& followed = instruction.patterns[instruction.pattern_count++];
      followed = Followed{};
      followed.pattern = *found;
    }
    instruction.unexplained = 0;
    return Result::kForetold;
  }
  if (++lesson->faults < kLessons) return Result::kLearning;
  lesson->code = 0;
  if (known) {
    instruction.unexplained = 0;
  } else {
    rest(instruction, now_);
  }
  return Result::kLearning;
}

}  // namespace tidepool
