// SPDX-License-Identifier: Apache-2.0
// What a program says of ranges of its memory, and what it can wait for: advice, prefetch, evict.
// A completion watches the pages of a range until all of them are where they were wanted. The
// runtime tells nobody when a page arrives, so waiting looks at intervals, which grow; advice that
// was dropped (for want of room, or of a place in the queue) is given again meanwhile. Thread-safe.
#pragma once

#include <memory>

#include "allocator/context.h"
#include "runtime/base/clock.h"

namespace tidepool {

enum class Hint : uint8_t { kHot, kCold, kWillNeed, kSequential, kReadMostly };

/// A range of bytes of the program's. Any alignment.
struct ByteRange {
  void* start = nullptr;
  Bytes size;
};

/// Errors: kInvalidArgument if the range is not memory of Tidepool's.
Status giveHint(Context& context, ByteRange range, Hint hint);

enum class Goal : uint8_t {
  kNear,  // every page can be used without a fault for far memory
  kFar,   // no page is mapped in local memory
};

class Completion {
 public:
  struct Progress {
    PageCount pages;  // that hold anything
    PageCount done;
  };

  /// Asks for it, and watches. Pages in part of the range are prefetched whole, but not evicted.
  /// Errors: as giveHint().
  static Result<std::unique_ptr<Completion>> start(Context& context, ByteRange range, Goal goal);
  ~Completion();

  /// How far it is. Errors: kLost if pages of the range are lost, which is told once for all.
  Result<Progress> look();
  /// Until it is done. Errors: kTimedOut, kLost.
  Status wait(Nanoseconds timeout);

 private:
  Completion(Context& context, MemorySource* source, ByteRange range, Goal goal)
      : context_(context), source_(source), range_(range), goal_(goal) {
    context_.addUser();
  }
  void ask();

  Context& context_;
  MemorySource* const source_;  // null: nothing to do
  const ByteRange range_;       // whole pages
  const Goal goal_;
};

}  // namespace tidepool
