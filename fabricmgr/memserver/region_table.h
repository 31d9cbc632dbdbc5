// SPDX-License-Identifier: Apache-2.0
// The regions a memory server has given out: their memory, tokens and epochs, and when each is to
// go. Thread-safe. The table owns the regions; a session shares the one it is attached to. A
// region's memory comes zeroed from the kernel and goes back to it (invariant I7), so no byte of
// one holder is ever seen by the next. Private regions live as long as their clients; managed ones,
// which the fabric manager orders, until it lets them go.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>

#include "runtime/base/clock.h"
#include "runtime/base/mapping.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/transport/wire.h"

namespace tidepool::memserver {

/// One region. Its bytes are written by sessions without a lock: clients keep other users off the
/// pages they write, as the protocol says.
class Region {
 public:
  Region(uint64_t id, const wire::Token& token, Mapping memory)
      : Region(id, token, std::move(memory), Bytes()) {
    resize(memory_.size());
  }
  /// `memory` is address space for more than the region's first `size`.
  Region(uint64_t id, const wire::Token& token, Mapping memory, Bytes size)
      : id_(id), token_(token), memory_(std::move(memory)), capacity_(size.value()) {}

  uint64_t id() const { return id_; }
  const wire::Token& token() const { return token_; }
  std::byte* data() const { return memory_.data(); }
  /// Relaxed: what is cut off stays mapped, and is fenced off by the server before it is erased.
  Bytes capacity() const { return Bytes(capacity_.load(std::memory_order_relaxed)); }
  Bytes room() const { return memory_.size(); }
  void resize(Bytes size) { capacity_.store(size.value(), std::memory_order_relaxed); }
  /// Acquire: pairs with the release in fence(), so what a fencing thread did before is seen.
  Epoch epoch() const { return Epoch(epoch_.load(std::memory_order_acquire)); }
  void fence(Epoch epoch) { epoch_.store(epoch.value(), std::memory_order_release); }
  /// True if [offset, offset + length) is inside the region; never overflows.
  bool holds(uint64_t offset, uint64_t length) const {
    return length <= capacity().value() && offset <= capacity().value() - length;
  }
  /// Makes a run of whole pages zeros, and gives its memory back to the kernel unless it is pinned:
  /// a device would go on writing to pages that are no longer the region's. Errors: kIo.
  Status discard(uint64_t offset, uint64_t length) TP_EXCLUDES(pin_mutex_);
  /// Memory that the kernel has to clear first makes a write wait, so some behind what is in use is
  /// populated ahead. Says whether there is more of that to do now, for a client that has written
  /// up to `end`. Writes far from the others tell nothing.
  bool wantBehind(uint64_t end);
  /// Populates a piece of what was wanted. False: nothing is left to do.
  bool populateSome();
  /// Bytes from the begin on that have been populated so far.
  uint64_t populated() const { return populated_.load(std::memory_order_relaxed); }
  /// Before a device is told of the region's memory, and after it has forgotten it: in between no
  /// memory is given back by discard().
  void pin() TP_EXCLUDES(pin_mutex_);
  void unpin() TP_EXCLUDES(pin_mutex_);
  /// Relaxed: for a look now and then.
  bool pinned() const { return pins_.load(std::memory_order_relaxed) > 0; }

 private:
  const uint64_t id_;
  const wire::Token token_;
  const Mapping memory_;
  std::atomic<uint64_t> capacity_;
  std::atomic<uint64_t> epoch_{1};
  std::atomic<uint64_t> wanted_{0};  // of populated memory: bytes from the begin on
  std::atomic<uint64_t> populated_{0};
  Mutex pin_mutex_;
  std::atomic<size_t> pins_{0};  // changed with pin_mutex_ held
};

/// Whom a server lends memory to: any client, or those that the fabric manager's orders let in.
enum class LendsTo : uint8_t { kAnybody, kByOrders };

/// Whether the client that makes a region may make a broken connection again.
enum class Returns : uint8_t { kNever, kMay };
/// How a connection ended.
enum class Leaving : uint8_t {
  kOfFurther,  // it had not made the region, and its client ended it
  kInOrder,    // it had, and its client, or all that its process had, ended it
  kBroken,     // something else ended it: its client may come back
};

class RegionTable {
 public:
  struct Graces {
    Nanoseconds left;                                       // for clients that have ended
    Nanoseconds broken;                                     // for those that may come back
    Graces(Nanoseconds both) : left(both), broken(both) {}  // NOLINT(google-explicit-constructor)
    Graces(Nanoseconds of_left, Nanoseconds of_broken) : left(of_left), broken(of_broken) {}
  };
  /// `capacity` bounds the sum of the regions; a region without connections is freed after one of
  /// the `graces`.
  RegionTable(Bytes capacity, Graces graces, const Clock& clock,
              LendsTo lends_to = LendsTo::kAnybody)
      : capacity_(capacity), graces_(graces), clock_(clock), lends_to_(lends_to) {}

  /// A new region of `size` (0: all that is free) with one connection; sweeps first if there is
  /// too little, also what clients that have ended left, whose grace is not over. Errors:
  /// kPermission if nobody may have one without orders, kNoSpace, kNoMemory, kInternal when the
  /// kernel has no random bytes.
  Result<std::shared_ptr<Region>> create(Bytes size, Returns returns = Returns::kNever)
      TP_EXCLUDES(mutex_);
  /// One more connection. Errors: kNotFound, kPermission for a wrong token, kStaleEpoch, kConflict
  /// for an epoch that this server does not know yet.
  Result<std::shared_ptr<Region>> attach(uint64_t id, const wire::Token& token, Epoch epoch)
      TP_EXCLUDES(mutex_);
  /// One connection of `region` has ended.
  void detach(const std::shared_ptr<Region>& region, Leaving leaving = Leaving::kInOrder)
      TP_EXCLUDES(mutex_);
  /// Raises a region's epoch: requests that carry an older one are refused from now on. Errors:
  /// kNotFound, kStaleEpoch when `epoch` is not newer.
  Status fence(uint64_t id, Epoch epoch) TP_EXCLUDES(mutex_);
  // Managed regions: `id` is the manager's. The caller sees to the order of their changes.
  /// A new one, open to nobody. Errors: kNoSpace, kNoMemory, kConflict.
  Result<std::shared_ptr<Region>> createManaged(uint64_t id, Bytes size) TP_EXCLUDES(mutex_);
  /// Errors: kNotFound, kNoSpace, kNoMemory beyond the address space that was set aside.
  Status resizeManaged(uint64_t id, Bytes size) TP_EXCLUDES(mutex_);
  /// Opens it to who shows `token` in `epoch`, or to nobody. Errors: kNotFound.
  Status admit(uint64_t id, const std::optional<wire::Token>& token, Epoch epoch)
      TP_EXCLUDES(mutex_);
  /// Gives its memory back. Those who are connected keep theirs until they have been told.
  void dropManaged(uint64_t id) TP_EXCLUDES(mutex_);
  /// Whose regions go: of those that are gone for longer than their grace; also of those that have
  /// ended, and who would come back, if at all, only by chance.
  enum class Grace : uint8_t { kOver, kOverOrLeft };
  /// Frees regions; returns how many.
  size_t sweep(Grace grace = Grace::kOver) TP_EXCLUDES(mutex_);

  LendsTo lendsTo() const { return lends_to_; }
  Bytes capacity() const { return capacity_; }
  Bytes freeBytes() const TP_EXCLUDES(mutex_);
  /// True if a region of `size` would fit once the private ones have gone that are being unmapped,
  /// or that nobody is connected to and nobody may come back to: worth trying again.
  bool willFit(Bytes size) const TP_EXCLUDES(mutex_);
  size_t regions() const TP_EXCLUDES(mutex_);

 private:
  static Result<Mapping> map(Bytes size);
  Result<Bytes> reserve(Bytes size) TP_EXCLUDES(mutex_);
  void unreserve(Bytes size) TP_EXCLUDES(mutex_);

  struct Entry {
    std::shared_ptr<Region> region;
    size_t connections = 0;
    Nanoseconds idle_since;
    Nanoseconds grace;
    bool left = false;  // its client has ended, in order, and nobody may come back
    bool managed = false;
    std::optional<wire::Token> admits;  // managed: what opens it now
  };

  const Bytes capacity_;
  const Graces graces_;
  const Clock& clock_;
  const LendsTo lends_to_;
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Entry> entries_ TP_GUARDED_BY(mutex_);
  Bytes reserved_ TP_GUARDED_BY(mutex_);
  Bytes unmapping_ TP_GUARDED_BY(mutex_);  // of `reserved_`: no longer listed, not yet given back
  uint64_t next_id_ TP_GUARDED_BY(mutex_) = 1;
};

}  // namespace tidepool::memserver
