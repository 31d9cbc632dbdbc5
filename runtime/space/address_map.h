// SPDX-License-Identifier: Apache-2.0
// What holds of addresses of the managed space, as the kernel's own list of mappings has it: the
// rights that the program set, and marks of what the kernel or a child of fork() has to be told.
// Grows with the number of pieces that differ from their neighbours. Thread-safe.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

#include "runtime/base/mutex.h"
#include "runtime/base/units.h"

namespace tidepool {

enum class Rights : uint8_t {
  kReadWrite,
  /// Nobody can store to it, so a copy of it stays true. It may be executable.
  kReadOnly,
  kOther,  // no access, write and execute, or not handed out
};

/// In place of a protection: nobody was given this part of the space, or it was released.
inline constexpr int kNotHandedOut = -1;
/// Nor is it reserved: the kernel maps what others ask it to map there (ManagedSpace::take()).
inline constexpr int kNotReserved = -2;
/// Handed out, but the kernel's for good: the program mapped something there itself, or did what
/// only the kernel can do. Stays so until the range is released.
inline constexpr int kSurrendered = -3;

/// `protection` as for mprotect(2), or one of these.
Rights rightsOf(int protection);

enum class Owner : uint8_t {
  kRuntime,
  kKernel,  // surrendered, or not reserved
  kNobody,
};
Owner ownerOf(int protection);

enum class Mark : uint8_t {
  /// What children are not to have (MADV_DONTFORK). It is forked like all the rest, and given up in
  /// the child before anything else runs there.
  kUnforked,
  /// What core dumps are not to have (MADV_DONTDUMP). The kernel knows it by mapping: code that
  /// maps something else there tells it anew.
  kUndumped,
};

/// The protection at an address, and for how many bytes from there it is the same.
struct ProtectionSpan {
  int protection;
  Bytes size;
};

/// The owner of an address, and for how many bytes from there it is the same.
struct OwnerSpan {
  Owner owner;
  Bytes size;
};

struct ProtectionStretch {
  uintptr_t start;
  uintptr_t end;
  int protection;
};

/// Whether an address is marked, and for how many bytes from there that stays so.
struct RangeSpan {
  bool inside;
  Bytes size;
};

/// Addresses are in bytes; sizes are greater than 0. Where nothing was said it is plain memory,
/// readable and writable, and has no mark.
class AddressMap {
 public:
  /// What is surrendered stays so. Returns by how many bytes what can be accessed at all has grown.
  int64_t protect(uintptr_t start, Bytes size, int protection);
  /// What is surrendered of it is not handed out any more.
  void endSurrender(uintptr_t start, Bytes size);
  Rights rightsAt(uintptr_t address) const;
  /// True if all of it can be read and written.
  bool plain(uintptr_t start, Bytes size) const;
  /// Look no further than `size`.
  ProtectionSpan spanAt(uintptr_t address, Bytes size) const;
  OwnerSpan ownerAt(uintptr_t address, Bytes size) const;
  /// The longest stretch around `address`, within [from, end), that has its protection.
  ProtectionStretch stretchAround(uintptr_t address, uintptr_t from, uintptr_t end) const;

  void mark(Mark mark, uintptr_t start, Bytes size) { setMark(mark, start, size, bitOf(mark)); }
  void unmark(Mark mark, uintptr_t start, Bytes size) {
    if (!none(mark)) setMark(mark, start, size, 0);
  }
  /// True if no address has it: one load, which is all that most programs pay for marks.
  bool none(Mark mark) const { return bytesOf(mark).load(std::memory_order_acquire) == 0; }
  /// Looks no further than `size`.
  RangeSpan markedAt(Mark mark, uintptr_t address, Bytes size) const;
  /// Calls `act(start, size)` for what of [start, end) is not the kernel's, upwards, with the map
  /// locked; stops and returns when it fails.
  template <typename Act>
  auto forEachOwn(uintptr_t start, uintptr_t end, Act act) const -> decltype(act(start, Bytes())) {
    MutexLock lock(mutex_);
    const auto own = [](const Facts& facts) { return ownerOf(facts.protection) != Owner::kKernel; };
    while (start < end) {
      const bool ours = own(pieceAt(start)->second);
      const uintptr_t stop =
          around(start, start, end, [&](const Facts& facts) { return own(facts) == ours; }).second;
      if (ours) {
        if (auto done = act(start, Bytes(stop - start)); !done) return done;
      }
      start = stop;
    }
    return {};
  }
  /// Takes the mark from the lowest range that has it: address and size, which is 0 when there is
  /// none left.
  std::pair<uintptr_t, Bytes> takeLowest(Mark mark);

  /// For fork(), which must find the map whole.
  Mutex& mutex() { return mutex_; }

 private:
  struct Facts {
    int protection = PROT_READ | PROT_WRITE;
    uint8_t marks = 0;
    bool operator==(const Facts&) const = default;
  };
  // By start; each goes on to the next. The first begins at 0, and no two in a row are alike.
  using Pieces = std::map<uintptr_t, Facts>;

  static uint8_t bitOf(Mark mark) { return static_cast<uint8_t>(1u << static_cast<int>(mark)); }
  const std::atomic<uint64_t>& bytesOf(Mark mark) const { return marked_[static_cast<int>(mark)]; }
  Pieces::const_iterator pieceAt(uintptr_t address) const TP_REQUIRES(mutex_) {
    return std::prev(pieces_.upper_bound(address));
  }
  /// The longest stretch of [from, end) around `address` whose pieces are all `alike(facts)`.
  template <typename Alike>
  std::pair<uintptr_t, uintptr_t> around(uintptr_t address, uintptr_t from, uintptr_t end,
                                         Alike alike) const TP_REQUIRES(mutex_) {
    auto first = pieceAt(address);
    auto next = std::next(first);
    while (first->first > from && alike(std::prev(first)->second)) --first;
    while (next != pieces_.end() && next->first < end && alike(next->second)) ++next;
    return {std::max(from, first->first), next == pieces_.end() ? end : std::min(end, next->first)};
  }
  /// Calls `act(facts, bytes)` for all pieces of the range, which changes the facts.
  template <typename Act>
  void change(uintptr_t start, uintptr_t end, Act act) TP_REQUIRES(mutex_);
  Pieces::iterator splitAt(uintptr_t address) TP_REQUIRES(mutex_);
  /// Joins a piece with the one before, if they are alike. Returns the next piece.
  Pieces::iterator join(Pieces::iterator piece) TP_REQUIRES(mutex_);
  RangeSpan markedLocked(Mark mark, uintptr_t address, Bytes size) const TP_REQUIRES(mutex_);
  void setMark(Mark mark, uintptr_t start, Bytes size, uint8_t bit);
  void setMarkLocked(Mark mark, uintptr_t start, uintptr_t end, uint8_t bit) TP_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Pieces pieces_ TP_GUARDED_BY(mutex_) = {{0, Facts()}};
  // Bytes that have each mark. Release pairs with the acquire in none(): code that maps or releases
  // a range has heard of what holds.
  std::array<std::atomic<uint64_t>, 2> marked_{};
};

}  // namespace tidepool
