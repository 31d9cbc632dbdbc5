// SPDX-License-Identifier: Apache-2.0
// Ranges are rounded to pages: outwards for what brings in, inwards for what moves out, so that a
// neighbour's bytes do not go with them.
#include "allocator/moves/hints.h"

#include <algorithm>
#include <ctime>

#include "allocator/heap/heap_table.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kFirstPause(50'000);
// A page comes from a memory server in tens of microseconds; who waits longer waits for many.
constexpr Nanoseconds kLongestPause(2'000'000);
constexpr Nanoseconds kAskAgain(20'000'000);

enum class Rounding : uint8_t { kOutwards, kInwards };

ByteRange wholePages(ByteRange range, Rounding rounding) {
  const auto start = reinterpret_cast<uintptr_t>(range.start);
  const uintptr_t end = start + range.size.value();
  const uintptr_t first =
      rounding == Rounding::kOutwards ? roundDown(start, kPageSize) : roundUp(start, kPageSize);
  const uintptr_t last =
      rounding == Rounding::kOutwards ? roundUp(end, kPageSize) : roundDown(end, kPageSize);
  return {reinterpret_cast<void*>(first), Bytes(last > first ? last - first : 0)};
}

/// The memory that the range is in; null if there is nothing to do for it. Errors: it is in none.
Result<MemorySource*> sourceOf(Context& context, ByteRange range) {
  if (range.size.value() == 0) return nullptr;
  MemorySource* const source = context.startedMemory();
  if (source != nullptr && source->contains(range.start, range.size)) return source;
  // As a number: what a caller gives may wrap, which a pointer may not.
  const uintptr_t last = reinterpret_cast<uintptr_t>(range.start) + (range.size.value() - 1);
  const HeapTable& heaps = HeapTable::instance();
  if (range.size.value() < PTRDIFF_MAX && heaps.isPlain(range.start) &&
      heaps.isPlain(reinterpret_cast<const void*>(last))) {
    return nullptr;
  }
  return fail(ErrorCode::kInvalidArgument, "%llu bytes at %p are not in memory of Tidepool's",
              static_cast<unsigned long long>(range.size.value()), range.start);
}

void sleepFor(Nanoseconds pause) {
  const timespec time{0, static_cast<long>(pause.value())};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
}

}  // namespace

Status giveHint(Context& context, ByteRange range, Hint hint) {
  const auto source = sourceOf(context, range);
  if (!source) return tl::unexpected(source.error());
  if (*source == nullptr) return {};
  const ByteRange outer = wholePages(range, Rounding::kOutwards);
  const ByteRange inner = wholePages(range, Rounding::kInwards);
  switch (hint) {
    case Hint::kHot:
    case Hint::kWillNeed:
      (*source)->willNeed(outer.start, outer.size);
      break;
    case Hint::kCold:
      if (inner.size.value() > 0) (*source)->cold(inner.start, inner.size);
      break;
    case Hint::kSequential:
    case Hint::kReadMostly:
      break;  // what the policy sees by itself
  }
  return {};
}

Result<std::unique_ptr<Completion>> Completion::start(Context& context, ByteRange range,
                                                      Goal goal) {
  const auto source = sourceOf(context, range);
  if (!source) return tl::unexpected(source.error());
  const ByteRange pages =
      wholePages(range, goal == Goal::kNear ? Rounding::kOutwards : Rounding::kInwards);
  const bool nothing = *source == nullptr || pages.size.value() == 0;
  std::unique_ptr<Completion> completion(
      new Completion(context, nothing ? nullptr : *source, pages, goal));
  completion->ask();
  return completion;
}

Completion::~Completion() { context_.removeUser(); }

void Completion::ask() {
  if (source_ == nullptr) return;
  if (goal_ == Goal::kNear) {
    source_->willNeed(range_.start, range_.size);
  } else {
    source_->pageOut(range_.start, range_.size);
  }
}

Result<Completion::Progress> Completion::look() {
  if (source_ == nullptr) return Progress{};
  const auto where = source_->residency(range_.start, range_.size);
  if (!where) return tl::unexpected(where.error());
  if (where->lost.value() > 0) {
    return fail(ErrorCode::kLost, "%llu pages of the range are lost with their far memory",
                static_cast<unsigned long long>(where->lost.value()));
  }
  const PageCount pages = where->local + where->leaving + where->farPages();
  // A page that is leaving cannot be touched without a fault, and needs no local memory for long.
  const PageCount near = where->local + where->in_place;
  const PageCount far = where->leaving + where->farPages();
  return Progress{pages, goal_ == Goal::kNear ? near : far};
}

Status Completion::wait(Nanoseconds timeout) {
  const MonotonicClock clock;
  const Nanoseconds start = clock.now();
  Nanoseconds asked = start;
  for (Nanoseconds pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    const auto progress = look();
    if (!progress) return tl::unexpected(progress.error());
    if (progress->done == progress->pages) return {};
    const Nanoseconds now = clock.now();
    const Nanoseconds waited = now - start;
    if (waited >= timeout) {
      return fail(ErrorCode::kTimedOut, "%llu of %llu pages are where they are wanted",
                  static_cast<unsigned long long>(progress->done.value()),
                  static_cast<unsigned long long>(progress->pages.value()));
    }
    if (now - asked >= kAskAgain) {
      ask();
      asked = now;
    }
    sleepFor(std::min(pause, timeout - waited));
  }
}

}  // namespace tidepool
