// SPDX-License-Identifier: Apache-2.0
// The interposed mmap family. Anonymous private memory goes to the managed space, also what is only
// reserved, to be opened piece by piece; calls on managed ranges become calls to the Runtime;
// everything else goes to the kernel as it came. A call on a range that is partly managed is cut
// into pieces. Errors are the kernel's errno values. mremap is in remap.cc.
#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "allocator/arena/raw_syscalls.h"
#include "shim/export.h"
#include "shim/hints.h"
#include "shim/mapping_calls.h"
#include "shim/next.h"
#include "shim/pieces.h"
#include "shim/surrender.h"

namespace tidepool {

// Smaller mappings (alternate signal stacks, guard areas, rings) are left to the kernel: they hold
// next to nothing, and each would cost the runtime a range of its own.
constexpr size_t kLeastManagedBytes = 64 * kKiB;
// What a mapping may carry and still be nothing but anonymous private memory.
constexpr int kPlainFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_POPULATE;
constexpr int kRights = PROT_READ | PROT_WRITE | PROT_EXEC;
// Hints below are for those who need short pointers, and know why.
constexpr uintptr_t kShortAddresses = 64 * kGiB;
// Hints that are aligned further are just round numbers.
constexpr size_t kMostHintAlignment = 64 * kMiB;
// Of address space that is left for a stack to grow into, however far its limit goes.
constexpr size_t kMostStack = kGiB;
// Newer than some C libraries.
constexpr int kMadvPopulateRead = 22, kMadvPopulateWrite = 23;
constexpr int kMadvDontNeedLocked = 24, kMadvCollapse = 25, kMadvGuardRemove = 103;

namespace {

bool isPlainMapping(size_t size, int protection, int flags) {
  const bool data = protection == (PROT_READ | PROT_WRITE) || protection == PROT_READ;
  return size >= kLeastManagedBytes && (data || protection == PROT_NONE) &&
         (flags & (MAP_PRIVATE | MAP_ANONYMOUS)) == (MAP_PRIVATE | MAP_ANONYMOUS) &&
         (flags & ~kPlainFlags) == 0;
}

void* protectFresh(void* range, size_t size, int protection) {
  if (protection == PROT_READ) {
    // Fresh memory cannot refuse a narrower protection; were it to, it would stay writable.
    static_cast<void>(managed_runtime->protect(range, Bytes(size), protection));
  }
  return range;
}

size_t preferredAlignment(uintptr_t hint, size_t size) {
  // To a granule where it costs nothing: direct tiers then map whole granules of it. And as the
  // hint is: allocators give hints that are aligned as they want the memory to be.
  const size_t own = size >= kGranuleSize ? kGranuleSize : kPageSize;
  if (hint == 0) return own;
  return std::max(own, std::min<size_t>(hint & -hint, kMostHintAlignment));
}

}  // namespace

void* mapManaged(size_t size, int protection) {
  if (size > PTRDIFF_MAX) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  InternalScope scope;
  size = roundUp(size, kPageSize);
  auto range = managed_runtime->allocate(Bytes(size), Bytes(preferredAlignment(0, size)));
  if (!range) {
    errno = toErrno(range.error());
    return MAP_FAILED;
  }
  return protectFresh(*range, size, protection);
}

namespace {

/// A mapping that the program would like to have at `hint`, but for which the kernel may choose
/// another place; or one that is only reserved. MAP_FAILED: it is better left to the kernel.
void* mapPreferred(void* hint, size_t size, int protection) {
  InternalScope scope;
  size = roundUp(size, kPageSize);
  const uintptr_t start = roundDown(reinterpret_cast<uintptr_t>(hint), kPageSize);
  const bool reserves = protection == PROT_NONE;
  if (start != 0) {
    if (!liesInManaged(start, size)) {
      if (hintsMustHold() || start < kShortAddresses) return MAP_FAILED;
    } else {
      void* const there = reinterpret_cast<void*>(start);
      const Status taken = reserves ? managed_runtime->reserveAt(there, Bytes(size))
                                    : managed_runtime->claim(there, Bytes(size));
      if (taken) return protectFresh(there, size, protection);
    }
  }
  const Bytes alignment(preferredAlignment(start, size));
  const auto range = reserves ? managed_runtime->reserve(Bytes(size), alignment)
                              : managed_runtime->allocate(Bytes(size), alignment);
  if (!range) return MAP_FAILED;
  if (start != 0) noteMoved(reinterpret_cast<uintptr_t>(*range), size);
  return protectFresh(*range, size, protection);
}

/// As the kernel sees it of memory that is no growing stack: what it does not know it refuses.
bool isProtection(int protection) {
  constexpr int kSemaphores = 0x8;  // PROT_SEM, which means nothing here
  return (protection & ~(kRights | kSemaphores)) == 0;
}

int unmapPiece(Owner owner, void* address, size_t size) {
  switch (owner) {
    // The runtime's tables still cover what was surrendered: whatever the kernel maps there stays
    // the kernel's.
    case Owner::kKernel:
      return raw::munmap(address, size);
    case Owner::kRuntime: {
      const Status status = managed_runtime->release(address, Bytes(size));
      // Another thread was faster.
      if (!status && status.error().code() == ErrorCode::kNotFound) return 0;
      return finish(status);
    }
    case Owner::kNobody:
      return 0;  // unmapping what is not mapped is no error
  }
  return 0;
}

/// One piece of a MAP_FIXED of anonymous memory: zeros and a protection, which is all the caller
/// sees.
int renewPiece(Owner owner, void* address, size_t size, int protection, int flags) {
  Status status;
  switch (owner) {
    case Owner::kKernel:
      return raw::mmap(address, size, protection, flags, -1, 0) == address ? 0 : -1;
    case Owner::kRuntime:
      if (protection == PROT_NONE) return finish(managed_runtime->withdraw(address, Bytes(size)));
      status = managed_runtime->discard(address, Bytes(size));
      managed_runtime->shareWithChildren(address, Bytes(size));
      if (status) status = managed_runtime->dumpAgain(address, Bytes(size));
      break;
    case Owner::kNobody:
      status = managed_runtime->claim(address, Bytes(size));
      break;
  }
  if (status) status = managed_runtime->protect(address, Bytes(size), protection);
  return finish(status);
}

/// Whether the kernel would refuse such a mapping, whatever is there: if so, what is there stays.
bool wouldMap(uintptr_t address, size_t size, int protection, int flags, int fd, off_t offset) {
  if ((flags & MAP_ANONYMOUS) != 0 && (flags & MAP_HUGETLB) == 0) return true;
  const int trial = flags & ~(MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_POPULATE | MAP_LOCKED);
  void* const there = raw::mmap(nullptr, size, protection, trial, fd, offset);
  if (there == MAP_FAILED) {
    // A driver may map at one address only, as NVIDIA's does for managed memory. The kernel asks
    // it once what was there is gone.
    return errno == EINVAL && offset % static_cast<off_t>(kPageSize) == 0 && deviceMajor(fd);
  }
  raw::munmap(there, size);
  return address % kPageSize == 0;
}

/// A stack grows into what is unmapped below it, as far as its limit goes.
void leaveRoomBelow(uintptr_t stack) {
  rlimit limit;
  size_t most = kMostStack;
  if (getrlimit(RLIMIT_STACK, &limit) == 0) most = std::min<size_t>(most, limit.rlim_cur);
  most = std::min<size_t>(roundDown(most, kPageSize), stack - managed_bounds.base);
  uintptr_t free = stack - most;
  forEachPiece(stack - most, most, [&](Owner owner, void* at, size_t length) {
    if (owner != Owner::kNobody) free = reinterpret_cast<uintptr_t>(at) + length;
    return 0;
  });
  // If it cannot be, the stack merely does not grow.
  if (free < stack) static_cast<void>(unmapFree(free, stack - free));
}

}  // namespace

int unmapPieces(uintptr_t address, size_t size) { return forEachPiece(address, size, unmapPiece); }

void* mapFixedOverManaged(void* address, size_t size, int protection, int flags, int fd,
                          off_t offset) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  // Memory for code, in a reservation, would stay local in any case: the kernel serves it faster.
  if ((flags & ~(kPlainFlags | MAP_FIXED | MAP_STACK)) == 0 && (flags & MAP_ANONYMOUS) != 0 &&
      (protection & PROT_EXEC) == 0) {
    tellWatchers(start, size);
    const int renewed = forEachPiece(start, size, [=](Owner owner, void* at, size_t length) {
      return renewPiece(owner, at, length, protection & kRights, flags);
    });
    return renewed == 0 ? address : MAP_FAILED;
  }
  if (!wouldMap(start, size, protection, flags, fd, offset) || !surrenderForKernel(start, size)) {
    return MAP_FAILED;
  }
  if ((flags & MAP_GROWSDOWN) != 0) leaveRoomBelow(start);
  return passed::mmap(address, size, protection, flags, fd, offset);
}

bool makeUnmapped(uintptr_t address, size_t size) {
  const int used = forEachPiece(
      address, size, [](Owner owner, void*, size_t) { return owner == Owner::kRuntime ? -1 : 0; });
  return used == 0 && unmapFree(address, size);
}

namespace {

/// MAP_FIXED_NOREPLACE: free parts of the managed space are reserved for the kernel, not for the
/// program.
bool isFreeForProgram(uintptr_t address, size_t size) {
  InternalScope scope;
  const Piece piece = pieceAt(address, size);
  return piece.owner == Owner::kNobody && piece.size == size && liesInManaged(address, size);
}

[[gnu::noinline]] void* mapSlow(void* address, size_t size, int protection, int flags, int fd,
                                off_t offset) {
  size_t rounded = size;
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  if ((flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) != 0 && size != 0 && validRange(start, rounded) &&
      touchesManaged(start, rounded)) {
    if ((flags & MAP_FIXED_NOREPLACE) != 0) {
      if (!isFreeForProgram(start, rounded)) {
        if (!makeUnmapped(start, rounded)) {
          errno = EEXIST;
          return MAP_FAILED;
        }
        return passed::mmap(address, size, protection, flags, fd, offset);
      }
      flags = (flags & ~MAP_FIXED_NOREPLACE) | MAP_FIXED;
    }
    return mapFixedOverManaged(address, rounded, protection, flags, fd, offset);
  }
  return passed::mmap(address, size, protection, flags, fd, offset);
}

/// Whether this kernel knows the advice; errno says why not.
bool kernelKnows(int advice) { return raw::madvise(nullptr, 0, advice) == 0; }

int leaveToKernel(void* address, size_t size, int advice) {
  if (!kernelKnows(advice) || surrenderInPlace(address, size) != 0) return -1;
  return raw::madvise(address, size, advice);
}

/// Advice on what becomes of managed memory in children and in core dumps, or that only the kernel
/// can follow.
int adviseOnCopies(void* address, size_t size, int advice) {
  switch (advice) {
    case MADV_DONTDUMP:
      return finish(managed_runtime->keepFromDumps(address, Bytes(size)));
    case MADV_DODUMP:
      return finish(managed_runtime->dumpAgain(address, Bytes(size)));
    case MADV_DOFORK:
      managed_runtime->shareWithChildren(address, Bytes(size));
      return 0;
    case MADV_DONTFORK:
      if (managed_runtime->keepFromChildren(address, Bytes(size))) return 0;
      return leaveToKernel(address, size, advice);
    // Promises that only the kernel can keep: MADV_WIPEONFORK, guard pages, and what newer kernels
    // have.
    default:
      return leaveToKernel(address, size, advice);
  }
}

// Advice on managed memory. What concerns only the kernel's own paging is accepted and ignored.
int advisePiece(void* address, size_t size, int advice) {
  switch (advice) {
    case kMadvDontNeedLocked:
      if (!kernelKnows(advice)) return -1;
      [[fallthrough]];
    case MADV_DONTNEED:
      return finish(managed_runtime->discard(address, Bytes(size)));
    case MADV_WILLNEED:
      managed_runtime->willNeed(address, Bytes(size));
      return 0;
    // The faults that the kernel takes for it are served like any other.
    case kMadvPopulateRead:
    case kMadvPopulateWrite:
      return raw::madvise(address, size, advice);
    case MADV_COLD:
      managed_runtime->cold(address, Bytes(size));
      return 0;
    case MADV_PAGEOUT:
      managed_runtime->pageOut(address, Bytes(size));
      return 0;
    // "May be freed when memory is short" allows keeping it, and the contents must survive a later
    // write: cold is as far as it may go.
    case MADV_FREE:
      managed_runtime->cold(address, Bytes(size));
      return 0;
    case MADV_NORMAL:
    case MADV_RANDOM:
    case MADV_SEQUENTIAL:
    case MADV_KEEPONFORK:
      return 0;
    // Configured out of some kernels.
    case MADV_HUGEPAGE:
    case MADV_NOHUGEPAGE:
    case MADV_MERGEABLE:
    case MADV_UNMERGEABLE:
    case kMadvGuardRemove:  // guarded is only what was taken out of the runtime's care
      return kernelKnows(advice) ? 0 : -1;
    case MADV_REMOVE:    // of file mappings alone
    case kMadvCollapse:  // nothing of ours is a huge page
      errno = EINVAL;
      return -1;
    default:
      return adviseOnCopies(address, size, advice);
  }
}

/// Calls the kernel on what is handed out; ENOMEM, as the kernel's, if there is a hole. The kernel
/// itself sees none: the whole managed space is mapped.
template <typename Call>
int callUnlessHole(uintptr_t address, size_t size, Call call) {
  return forEachPiece(address, size, [&](Owner owner, void* at, size_t length) {
    return owner == Owner::kNobody ? refuseHole() : call(owner, at, length);
  });
}

}  // namespace

int protectPieces(uintptr_t address, size_t size, int protection) {
  return callUnlessHole(address, size, [=](Owner owner, void* at, size_t length) {
    if (owner != Owner::kRuntime) return raw::mprotect(at, length, protection);
    return finish(managed_runtime->protect(at, Bytes(length), protection));
  });
}

bool isKernels(uintptr_t address, size_t size, size_t& rounded) {
  rounded = size;
  return !managing() || size == 0 || !validRange(address, rounded) ||
         !touchesManaged(address, rounded);
}

int advisePieces(uintptr_t address, size_t size, int advice) {
  bool hole = false;  // as the kernel: the rest is done all the same
  const int result = forEachPiece(address, size, [&](Owner owner, void* at, size_t length) {
    if (owner == Owner::kRuntime) return advisePiece(at, length, advice);
    if (owner != Owner::kNobody) return raw::madvise(at, length, advice);
    hole = true;
    return 0;
  });
  if (result != 0 || !hole) return result;
  return kernelKnows(advice) ? refuseHole() : -1;
}

}  // namespace tidepool

using namespace tidepool;

extern "C" {

TP_EXPORT void* mmap(void* address, size_t size, int protection, int flags, int fd,
                     off_t offset) noexcept {
  const bool program = t_thread_mode != ThreadMode::kInternal;
  const bool plain = program && isPlainMapping(size, protection, flags);
  if (program && (managing() || (plain && isAsleep() && wake()))) {
    if (plain) {
      if (address == nullptr && protection != PROT_NONE) return mapManaged(size, protection);
      void* const range = mapPreferred(address, size, protection);
      if (range != MAP_FAILED) return range;
    }
    return mapSlow(address, size, protection, flags, fd, offset);
  }
  return passed::mmap(address, size, protection, flags, fd, offset);
}

TP_EXPORT void* mmap64(void* address, size_t size, int protection, int flags, int fd,
                       off_t offset) noexcept {
  return mmap(address, size, protection, flags, fd, offset);
}

TP_EXPORT int munmap(void* address, size_t size) noexcept {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  size_t rounded;
  if (isKernels(start, size, rounded)) return passed::munmap(address, size);
  noteUnmapped(start, rounded);
  tellWatchers(start, rounded);
  return unmapPieces(start, rounded);
}

TP_EXPORT int mprotect(void* address, size_t size, int protection) noexcept {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  size_t rounded;
  if (isKernels(start, size, rounded)) return passed::mprotect(address, size, protection);
  if (!isProtection(protection)) {
    errno = EINVAL;
    return -1;
  }
  return protectPieces(start, rounded, protection & kRights);
}

TP_EXPORT int madvise(void* address, size_t size, int advice) noexcept {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  size_t rounded;
  if (isKernels(start, size, rounded)) return passed::madvise(address, size, advice);
  if (advice == MADV_DONTNEED) tellWatchers(start, rounded);
  return advisePieces(start, rounded, advice);
}

TP_EXPORT int mincore(void* address, size_t size, unsigned char* pages) noexcept {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  size_t rounded;
  if (!isKernels(start, size, rounded) &&
      callUnlessHole(start, rounded, [](Owner, void*, size_t) { return 0; }) != 0) {
    return -1;
  }
  return passOn(next_calls.mincore, raw::mincore, address, size, pages);
}

TP_EXPORT int msync(void* address, size_t size, int flags) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  size_t rounded;
  if (isKernels(start, size, rounded)) return passed::msync(address, size, flags);
  return callUnlessHole(start, rounded, [=](Owner, void* at, size_t length) {
    return raw::msync(at, length, flags);
  });
}

}  // extern "C"
