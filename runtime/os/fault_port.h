// SPDX-License-Identifier: Apache-2.0
// The seam to userfaultfd(2). KernelFaultPort talks to the kernel; tests hand the code above a
// port that fails on purpose. Every call is safe from any thread and allocates nothing.
// Addresses and lengths are in bytes, page-aligned.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"

namespace tidepool {

/// A thread waits at `address` because its page is absent.
struct MissingFault {
  uintptr_t address = 0;  // page-aligned
  int thread = 0;
  bool write = false;
  bool closed = false;  // to writers, rather than absent
};

/// What an operation on a range came to: whole, in part, or why not.
enum class PortOutcome : uint8_t {
  kDone,
  kExists,   // the target page is already there
  kAbsent,   // the source page is not there
  kBusy,     // pinned, locked or under migration: try another page or later
  kRetry,    // the address space is changing: try again at once
  kInvalid,  // the range is not (any more) of a kind that this works on
  kNoMemory,
};

struct PortResult {
  PortOutcome outcome = PortOutcome::kDone;
  /// Bytes done before the outcome; all of them for kDone.
  Bytes done;
};

/// Whether threads that wait in the range are woken by the operation.
enum class Wake : uint8_t { kYes, kNo };

/// Whether pages are armed as they come in, so that os::scanWritten() tells a write to them.
enum class Arm : uint8_t { kYes, kNo };

class FaultPort {
 public:
  virtual ~FaultPort() = default;

  /// Another port of the same kind with nothing armed: for a child of fork(), whose memory the
  /// parent's port does not serve.
  virtual Result<std::unique_ptr<FaultPort>> reopen() const = 0;

  /// Arms a range. Of anonymous memory: first touches are reported, writes are tracked. On a write
  /// barrier: a shared mapping, whose pages writeProtect() can then close to writers.
  virtual Status arm(uintptr_t address, Bytes size) = 0;
  /// Takes a range back that was armed: it is ordinary memory then.
  virtual Status disarm(uintptr_t address, Bytes size) = 0;
  /// On a write barrier: from now on a thread that touches a page of the range that is not in the
  /// page table waits, readers too, until disarm() or admit(), and wake(). Errors: kUnsupported
  /// where the kernel cannot; kNoMemory.
  virtual Status hold(uintptr_t, Bytes) {
    return fail(ErrorCode::kUnsupported, "readers cannot be held up");
  }
  /// Puts a page of a range that is held into the page table, closed to writers, and wakes who
  /// waits for it. False if the kernel cannot, or the file has no such page yet.
  virtual bool admit(uintptr_t) { return false; }
  /// Fills absent pages with a copy of `from`, atomically page by page. Arm::kYes only where
  /// tracksWrites(): elsewhere a write would wait for wake().
  virtual PortResult copy(uintptr_t to, const std::byte* from, Bytes size, Wake wake,
                          Arm writes) = 0;
  PortResult copy(uintptr_t to, const std::byte* from, Bytes size, Wake wake) {
    return copy(to, from, size, wake, Arm::kNo);
  }
  /// Moves present pages between two armed ranges without copying; the source becomes absent.
  virtual PortResult move(uintptr_t to, uintptr_t from, Bytes size, Wake wake) = 0;
  /// Makes every touch of the pages end in SIGBUS.
  virtual Status poison(uintptr_t address, Bytes size) = 0;
  virtual void wake(uintptr_t address, Bytes size) = 0;
  /// Blocks (lets none write) or unblocks writes to the range's present pages.
  virtual Status writeProtect(uintptr_t address, Bytes size, Wake unprotect) = 0;
  /// Reads waiting faults without blocking; returns how many were stored.
  virtual size_t read(std::span<MissingFault> out) = 0;
  /// For poll(2): readable when a fault waits.
  virtual int fd() const = 0;

  /// False on kernels before 6.8: the caller then write-protects, copies and discards.
  virtual bool canMove() const = 0;
  /// True if the kernel resolves tracked writes itself (6.7+), so that they cost no event.
  virtual bool tracksWrites() const = 0;
  virtual bool canPoison() const = 0;
};

/// copy() until all is done or a page cannot be: goes on after kRetry, across the kernel's
/// mappings, and after kNoMemory once the kernel has had a moment to reclaim. For bytes that have
/// no other home, so that giving up would lose them. `done` counts what was done before that page.
PortResult copyAll(FaultPort& port, uintptr_t to, const std::byte* from, Bytes size, Wake wake,
                   Arm writes = Arm::kNo);
/// move() in the same way; gives up at the first page that is busy or out of memory.
PortResult moveAll(FaultPort& port, uintptr_t to, uintptr_t from, Bytes size, Wake wake);

/// A port for shared mappings of direct tiers, whose writeProtect() makes writers wait until
/// wake(). Arming also ends fault-around there, so that a present page is one that was touched.
Result<std::unique_ptr<FaultPort>> openKernelWriteBarrier();

enum class MovePolicy : uint8_t { kIfSupported, kNever };

/// Errors: kPermission when faults taken inside system calls may not be served (with what mends
/// it), kUnsupported when the kernel has no userfaultfd.
Result<std::unique_ptr<FaultPort>> openKernelFaultPort(MovePolicy move);

}  // namespace tidepool
