// SPDX-License-Identifier: Apache-2.0
// Address space of Tidepool's own: its tables, stacks, buffers and views of files lie in parts that
// are reserved whole and kept for good. Were they mapped wherever the kernel finds room, they would
// come to lie in holes that the program has just made, and a program may put something of its own
// there (MAP_FIXED), or count on a touch of it to fail. That matters in a forked child above all,
// where Tidepool maps much anew while the program knows what it had unmapped.
//
// What is taken is an address and nothing more: the caller maps over it with MAP_FIXED. What is
// given back becomes a reservation again; nothing is ever unmapped. No lock: every step is one
// atomic operation on a word of a bitmap, so a copy of the process made at any moment, by a signal
// handler even, can go on. The worst it can lose is a range that was just being taken.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/base/units.h"

namespace tidepool {

class OwnSpace {
 public:
  /// Ranges are handed out in units of this size: bytes.
  static constexpr uint64_t kUnit = 64 * kKiB;

  /// `part_size`: how much is reserved at a time, unless RLIMIT_AS is set, of which a small share
  /// is taken, or more is asked for.
  constexpr explicit OwnSpace(Bytes part_size) : part_size_(part_size) {}
  OwnSpace(const OwnSpace&) = delete;
  OwnSpace& operator=(const OwnSpace&) = delete;

  /// Address space of `size` bytes that nothing else uses, without memory behind it; `alignment` is
  /// a power of two. 0, and errno, if the kernel has no more of it. Thread-safe, as are the others.
  uintptr_t take(Bytes size, Bytes alignment);
  /// Frees what lies in a range that was taken, and makes it available again. What the kernel does
  /// not let go of (too many mappings) stays taken.
  void giveBack(uintptr_t address, Bytes size);
  bool contains(uintptr_t address) const { return partOf(address) != nullptr; }
  /// Whether `address` lies in a part, and how far that holds: at most `size` bytes.
  struct Span {
    bool own;
    uint64_t size;
  };
  Span spanAt(uintptr_t address, uint64_t size) const;

 private:
  struct Part;

  Part* partOf(uintptr_t address) const;
  Part* reservePart(uint64_t bytes) const;
  static uintptr_t takeFrom(Part& part, uint64_t units, uint64_t alignment);

  const Bytes part_size_;
  std::atomic<Part*> parts_{nullptr};  // the one reserved last is the first
};

/// That of the process. The first use reserves it, which in a preloaded library is before the
/// program runs.
OwnSpace& ownSpace();

/// Sanitizers keep account of what is mapped where: theirs is the kernel's choice, as libc gives
/// it.
#ifdef TIDEPOOL_SANITIZED
constexpr bool kOwnSpaceUsed = false;
#else
constexpr bool kOwnSpaceUsed = true;
#endif

}  // namespace tidepool
