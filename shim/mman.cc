// SPDX-License-Identifier: Apache-2.0
// The interposed mmap family. Anonymous private memory goes to the managed space; calls on managed
// ranges become calls to the Runtime; everything else goes to the kernel as it came. A call on a
// range that is partly managed is cut into pieces. Errors are the kernel's errno values.
#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstring>

#include "shim/engine.h"
#include "shim/export.h"
#include "shim/raw_syscalls.h"
#include "shim/surrendered.h"

namespace tidepool {
namespace {

// Smaller mappings (alternate signal stacks, guard areas, rings) are left to the kernel: they hold
// next to nothing, and each would cost the runtime a range of its own.
constexpr size_t kLeastManagedBytes = 64 * kKiB;
// What a mapping may carry and still be nothing but anonymous private memory.
constexpr int kPlainFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_POPULATE;

bool managing() { return threadMode() == ThreadMode::kManaged; }

int toErrno(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
      return EINVAL;
    case ErrorCode::kPermission:
      return EACCES;
    default:
      return ENOMEM;
  }
}

/// 0, or -1 with errno set: the way system calls end.
int finish(const Status& status) {
  if (status) return 0;
  errno = toErrno(status.error());
  return -1;
}

bool isPlainMapping(void* address, size_t size, int protection, int flags) {
  const bool readable_data = protection == (PROT_READ | PROT_WRITE) || protection == PROT_READ;
  return address == nullptr && size >= kLeastManagedBytes && readable_data &&
         (flags & (MAP_PRIVATE | MAP_ANONYMOUS)) == (MAP_PRIVATE | MAP_ANONYMOUS) &&
         (flags & ~kPlainFlags) == 0;
}

void* mapManaged(size_t size, int protection) {
  if (size > PTRDIFF_MAX) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  InternalScope scope;
  size = roundUp(size, kPageSize);
  // Aligned to a granule where it costs nothing: direct tiers then map whole granules of it.
  const size_t alignment = size >= kGranuleSize ? kGranuleSize : kPageSize;
  auto range = managed_runtime->allocate(Bytes(size), Bytes(alignment));
  if (!range) {
    errno = toErrno(range.error());
    return MAP_FAILED;
  }
  if (protection != (PROT_READ | PROT_WRITE)) {
    // Fresh memory cannot refuse a narrower protection; were it to, it would stay writable.
    static_cast<void>(managed_runtime->protect(*range, Bytes(size), protection));
  }
  return *range;
}

/// True if any byte of the range is in the managed space.
bool touchesManaged(uintptr_t address, size_t size) {
  if (size == 0 || address + size < address) return false;
  if (isManaged(reinterpret_cast<void*>(address))) return true;
  if (isManaged(reinterpret_cast<void*>(address + size - 1))) return true;
  // Larger than the whole space, from both ends.
  const ManagedBounds bounds = managed_bounds;
  return address < bounds.base && address + size > bounds.base;
}

enum class Owner : uint8_t { kKernel, kRuntime, kSurrendered };
struct Piece {
  Owner owner;
  size_t size;
};

/// The longest piece at `address`, at most `size`, that has one owner.
Piece pieceAt(uintptr_t address, size_t size) {
  const ManagedBounds bounds = managed_bounds;
  if (address < bounds.base) return {Owner::kKernel, std::min<size_t>(size, bounds.base - address)};
  const uintptr_t end = bounds.base + bounds.size;
  if (address >= end) return {Owner::kKernel, size};
  const SurrenderedSpan span = surrenderedSpan(address, std::min<size_t>(size, end - address));
  return {span.surrendered ? Owner::kSurrendered : Owner::kRuntime, span.size};
}

/// Calls `act(owner, address, size)` on each piece in turn; stops at the first that fails.
template <typename Act>
int forEachPiece(uintptr_t address, size_t size, Act act) {
  InternalScope scope;
  while (size > 0) {
    const Piece piece = pieceAt(address, size);
    if (const int result = act(piece.owner, reinterpret_cast<void*>(address), piece.size)) {
      return result;
    }
    address += piece.size;
    size -= piece.size;
  }
  return 0;
}

bool isPageAligned(uintptr_t address) { return (address & (kPageSize - 1)) == 0; }

/// As the kernel checks it: page-aligned start, a size that does not wrap. Rounds `size` up.
bool validRange(uintptr_t address, size_t& size) {
  const size_t rounded = roundUp(size, kPageSize);
  if (!isPageAligned(address) || rounded < size || address + rounded < address) return false;
  size = rounded;
  return true;
}

int unmapPiece(Owner owner, void* address, size_t size) {
  switch (owner) {
    case Owner::kKernel:
      return raw::munmap(address, size);
    case Owner::kRuntime: {
      const Status status = managed_runtime->release(address, Bytes(size));
      // Unmapping what is not mapped is no error.
      if (!status && status.error().code() == ErrorCode::kNotFound) return 0;
      return finish(status);
    }
    case Owner::kSurrendered: {
      // Stays reserved: the runtime's bookkeeping still covers it.
      void* hole = raw::mmap(address, size, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
      return hole == address ? 0 : -1;
    }
  }
  return 0;
}

/// MAP_FIXED onto a range that is at least partly managed.
void* mapFixedOverManaged(void* address, size_t size, int protection, int flags, int fd,
                          off_t offset) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  const ManagedBounds bounds = managed_bounds;
  const bool inside = start >= bounds.base && start + size <= bounds.base + bounds.size;
  const bool anonymous =
      (flags & ~(kPlainFlags | MAP_FIXED | MAP_STACK)) == 0 && (flags & MAP_ANONYMOUS) != 0;
  InternalScope scope;
  if (inside && anonymous && pieceAt(start, size).owner == Owner::kRuntime &&
      pieceAt(start, size).size == size) {
    // New anonymous memory in place of old: zeros and a protection, which is all the caller sees.
    Status status = managed_runtime->discard(address, Bytes(size));
    if (status) status = managed_runtime->protect(address, Bytes(size), protection);
    return finish(status) == 0 ? address : MAP_FAILED;
  }
  // Anything else leaves the runtime's care for good; see surrendered.h. Emptied first, so that no
  // tier holds data for it and no migration has a reason to look at it again.
  const int emptied = forEachPiece(start, size, [](Owner owner, void* at, size_t length) {
    if (owner == Owner::kRuntime) {
      if (const int result = finish(managed_runtime->discard(at, Bytes(length)))) return result;
      surrender(reinterpret_cast<uintptr_t>(at), length);
      managed_runtime->surrender(at, Bytes(length));
    }
    return 0;
  });
  if (emptied != 0) return MAP_FAILED;
  return raw::mmap(address, size, protection, flags, fd, offset);
}

[[gnu::noinline]] void* mapSlow(void* address, size_t size, int protection, int flags, int fd,
                                off_t offset) {
  size_t rounded = size;
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  if ((flags & MAP_FIXED) != 0 && size != 0 && validRange(start, rounded) &&
      touchesManaged(start, rounded)) {
    return mapFixedOverManaged(address, rounded, protection, flags, fd, offset);
  }
  return raw::mmap(address, size, protection, flags, fd, offset);
}

// Advice on managed memory. What concerns only the kernel's own paging is accepted and ignored.
int advisePiece(void* address, size_t size, int advice) {
  switch (advice) {
    case MADV_DONTNEED:
      return finish(managed_runtime->discard(address, Bytes(size)));
    case MADV_WILLNEED:
      managed_runtime->willNeed(address, Bytes(size));
      return 0;
#ifdef MADV_POPULATE_READ
    case MADV_POPULATE_READ:
    case MADV_POPULATE_WRITE:
      managed_runtime->willNeed(address, Bytes(size));
      return 0;
#endif
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
    case MADV_HUGEPAGE:
    case MADV_NOHUGEPAGE:
    case MADV_MERGEABLE:
    case MADV_UNMERGEABLE:
    case MADV_DONTDUMP:
    case MADV_DODUMP:
    case MADV_DONTFORK:
    case MADV_DOFORK:
      return 0;
    // MADV_WIPEONFORK among them: a promise that cannot be kept here is refused.
    default:
      errno = EINVAL;
      return -1;
  }
}

/// Moves by copying, where the runtime cannot move pages: to a fixed address, or part of a mapping.
void* moveByCopy(void* from, size_t old_size, size_t new_size, void* target) {
  const size_t copied = std::min(old_size, new_size);
  memcpy(target, from, copied);
  const int result = forEachPiece(reinterpret_cast<uintptr_t>(from), old_size, unmapPiece);
  return result == 0 ? target : MAP_FAILED;
}

void* remapManaged(void* address, size_t old_size, size_t new_size, int flags, void* target) {
  constexpr int kKnownFlags = MREMAP_MAYMOVE | MREMAP_FIXED;
  if ((flags & ~kKnownFlags) != 0 || old_size == 0 || new_size == 0 ||
      ((flags & MREMAP_FIXED) != 0 && (flags & MREMAP_MAYMOVE) == 0)) {
    errno = EINVAL;
    return MAP_FAILED;
  }
  if ((flags & MREMAP_FIXED) != 0) {
    void* made = mmap(target, new_size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    return made == MAP_FAILED ? MAP_FAILED : moveByCopy(address, old_size, new_size, target);
  }
  if (new_size <= old_size) {
    if (new_size == old_size) return address;
    return munmap(static_cast<std::byte*>(address) + new_size, old_size - new_size) == 0
               ? address
               : MAP_FAILED;
  }
  if ((flags & MREMAP_MAYMOVE) == 0) {
    errno = ENOMEM;  // what lies behind a managed range belongs to others
    return MAP_FAILED;
  }
  {
    InternalScope scope;
    auto moved = managed_runtime->resize(address, Bytes(old_size), Bytes(new_size));
    if (moved) return *moved;
    if (moved.error().code() != ErrorCode::kInvalidArgument &&
        moved.error().code() != ErrorCode::kNotFound) {
      errno = toErrno(moved.error());
      return MAP_FAILED;
    }
  }
  void* made = mapManaged(new_size, PROT_READ | PROT_WRITE);
  return made == MAP_FAILED ? MAP_FAILED : moveByCopy(address, old_size, new_size, made);
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

TP_EXPORT void* mmap(void* address, size_t size, int protection, int flags, int fd,
                     off_t offset) noexcept {
  if (t_thread_mode != ThreadMode::kInternal && managing()) {
    if (isPlainMapping(address, size, protection, flags)) return mapManaged(size, protection);
    return mapSlow(address, size, protection, flags, fd, offset);
  }
  return raw::mmap(address, size, protection, flags, fd, offset);
}

TP_EXPORT void* mmap64(void* address, size_t size, int protection, int flags, int fd,
                       off_t offset) noexcept {
  return mmap(address, size, protection, flags, fd, offset);
}

TP_EXPORT int munmap(void* address, size_t size) noexcept {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  size_t rounded = size;
  if (!managing() || size == 0 || !validRange(start, rounded) || !touchesManaged(start, rounded)) {
    return raw::munmap(address, size);
  }
  return forEachPiece(start, rounded, unmapPiece);
}

TP_EXPORT void* mremap(void* address, size_t old_size, size_t new_size, int flags, ...) noexcept {
  void* target = nullptr;
  if ((flags & MREMAP_FIXED) != 0) {
    va_list args;
    va_start(args, flags);
    target = va_arg(args, void*);
    va_end(args);
  }
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  size_t old_rounded = old_size, new_rounded = new_size, target_rounded = new_size;
  if (managing() && validRange(start, old_rounded) &&
      pieceAt(start, std::max<size_t>(old_rounded, 1)).owner == Owner::kRuntime &&
      isManaged(address)) {
    if (!validRange(start, new_rounded)) {
      errno = EINVAL;
      return MAP_FAILED;
    }
    return remapManaged(address, old_rounded, new_rounded, flags, target);
  }
  // The kernel would unmap managed memory at the target behind the runtime's back.
  if (target != nullptr && managing() &&
      validRange(reinterpret_cast<uintptr_t>(target), target_rounded) &&
      touchesManaged(reinterpret_cast<uintptr_t>(target), target_rounded)) {
    if (mapFixedOverManaged(target, target_rounded, PROT_NONE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
      return MAP_FAILED;
    }
  }
  return raw::mremap(address, old_size, new_size, flags, target);
}

TP_EXPORT int mprotect(void* address, size_t size, int protection) noexcept {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  size_t rounded = size;
  if (!managing() || size == 0 || !validRange(start, rounded) || !touchesManaged(start, rounded)) {
    return raw::mprotect(address, size, protection);
  }
  return forEachPiece(start, rounded, [protection](Owner owner, void* at, size_t length) {
    if (owner != Owner::kRuntime) return raw::mprotect(at, length, protection);
    return finish(managed_runtime->protect(at, Bytes(length), protection));
  });
}

TP_EXPORT int madvise(void* address, size_t size, int advice) noexcept {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  size_t rounded = size;
  if (!managing() || size == 0 || !validRange(start, rounded) || !touchesManaged(start, rounded)) {
    return raw::madvise(address, size, advice);
  }
  return forEachPiece(start, rounded, [advice](Owner owner, void* at, size_t length) {
    if (owner != Owner::kRuntime) return raw::madvise(at, length, advice);
    return advisePiece(at, length, advice);
  });
}

}  // extern "C"
