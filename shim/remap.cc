// SPDX-License-Identifier: Apache-2.0
// The interposed mremap. Managed pages cannot change their address, so what has to move is copied,
// by the calling thread, with the protections it had; from the first byte on nobody can store to
// the old place any more, as if it were gone. Growing in place is tried first.
#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <vector>

#include "allocator/arena/raw_syscalls.h"
#include "shim/export.h"
#include "shim/next.h"
#include "shim/pieces.h"
#include "shim/surrender.h"

namespace tidepool {
namespace {

/// Copies the runs of pages that hold something.
void copyUsed(const std::byte* from, size_t size, std::byte* to) {
  for (size_t at = 0; at < size;) {
    size_t run = 0;
    while (at + run < size && !managed_runtime->isEmpty(from + at + run)) run += kPageSize;
    memcpy(to + at, from + at, run);
    at += run + kPageSize;  // the page after a run is empty, or past the end
  }
}

int protectManaged(void* address, size_t size, int protection) {
  InternalScope scope;
  return finish(managed_runtime->protect(address, Bytes(size), protection));
}

using Spans = std::vector<ProtectionSpan>;

Spans spansOf(const std::byte* start, size_t size) {
  InternalScope scope;
  Spans spans;
  for (size_t at = 0; at < size; at += spans.back().size.value()) {
    spans.push_back(managed_runtime->spanAt(start + at, Bytes(size - at)));
  }
  return spans;
}

/// As far as the first `count` of `spans` reach, or as that can be done.
int protectSpans(std::byte* start, const Spans& spans, size_t count) {
  for (size_t i = 0; i < count; start += spans[i++].size.value()) {
    if (spans[i].protection == (PROT_READ | PROT_WRITE)) continue;
    if (protectPieces(reinterpret_cast<uintptr_t>(start), spans[i].size.value(),
                      spans[i].protection) != 0) {
      return -1;
    }
  }
  return 0;
}

/// Nobody can store to the range from here on: another thread's store that comes later ends as it
/// would at an address that is unmapped, and is not lost in a place that nobody looks at any more.
int closeToWriters(std::byte* start, const Spans& spans) {
  size_t closed = 0;
  for (std::byte* at = start; closed < spans.size(); at += spans[closed++].size.value()) {
    if (protectManaged(at, spans[closed].size.value(), PROT_READ) != 0) {
      protectSpans(start, spans, closed);
      return -1;
    }
  }
  return 0;
}

/// Copies what pages of the runtime's hold to `to`, which is fresh, with the protections: pages
/// that were never written are left out. The source can only be read from then on. 0 or -1. The
/// caller's thread touches managed memory: hold no lock.
int copyManaged(std::byte* from, size_t size, std::byte* to) {
  const Spans spans = spansOf(from, size);
  if (closeToWriters(from, spans) != 0) return -1;
  copyUsed(from, size, to);
  return protectSpans(to, spans, spans.size());
}

struct Remap {
  std::byte* address;
  size_t old_size;
  size_t new_size;
  int flags;
  std::byte* target;  // with MREMAP_FIXED

  bool has(int flag) const { return (flags & flag) != 0; }
  std::byte* end() const { return address + old_size; }
};

/// As the kernel refuses them.
bool isValid(const Remap& call) {
  constexpr int kKnownFlags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  if ((call.flags & ~kKnownFlags) != 0 || call.old_size == 0 || call.new_size == 0) return false;
  if (call.has(MREMAP_FIXED | MREMAP_DONTUNMAP) && !call.has(MREMAP_MAYMOVE)) return false;
  if (call.has(MREMAP_DONTUNMAP) && call.old_size != call.new_size) return false;
  if (!call.has(MREMAP_FIXED)) return true;
  size_t size = call.new_size;
  const bool overlaps = call.target < call.end() && call.address < call.target + call.new_size;
  return validRange(reinterpret_cast<uintptr_t>(call.target), size) && !overlaps;
}

/// The protection of the last page: what is added behind it gets the same.
int lastProtection(const Remap& call) {
  return managed_runtime->spanAt(call.end() - kPageSize, Bytes(kPageSize)).protection;
}

/// What the range at `from` was told of children and of core dumps holds for this one; what its
/// last page was, for what is longer than it.
void inheritAdvice(const std::byte* from, std::byte* to, size_t size, size_t new_size) {
  if (managed_runtime->isKeptFromChildren(from)) {
    static_cast<void>(madvise(to, new_size, MADV_DONTFORK));
  }
  for (size_t at = 0; at < size;) {
    const RangeSpan span = managed_runtime->dumpAdviceAt(from + at, Bytes(size - at));
    const size_t end = at + span.size.value();
    const size_t length = (end == size ? new_size : end) - at;
    if (span.inside) static_cast<void>(madvise(to + at, length, MADV_DONTDUMP));
    at = end;
  }
}

bool growInPlace(const Remap& call) {
  const Bytes more(call.new_size - call.old_size);
  const int protection = lastProtection(call);
  {
    InternalScope scope;
    if (!managed_runtime->claim(call.end(), more)) return false;
    // Fresh memory cannot refuse a narrower protection.
    static_cast<void>(managed_runtime->protect(call.end(), more, protection));
  }
  inheritAdvice(call.end() - kPageSize, call.end(), kPageSize, more.value());
  return true;
}

/// To `target`, which is fresh and as long as the new size.
void* moveByCopy(const Remap& call, void* target) {
  const size_t copied = std::min(call.old_size, call.new_size);
  const int protection = lastProtection(call);
  if (copyManaged(call.address, copied, static_cast<std::byte*>(target)) != 0) return MAP_FAILED;
  if (call.new_size > copied && protection != (PROT_READ | PROT_WRITE) &&
      mprotect(static_cast<std::byte*>(target) + copied, call.new_size - copied, protection) != 0) {
    return MAP_FAILED;
  }
  inheritAdvice(call.address, static_cast<std::byte*>(target), copied, call.new_size);
  tellWatchers(reinterpret_cast<uintptr_t>(call.address), call.old_size);
  const int left = unmapPieces(reinterpret_cast<uintptr_t>(call.address), call.old_size);
  return left == 0 ? target : MAP_FAILED;
}

void* moveOrFail(const Remap& call, void* made) {
  return made == MAP_FAILED ? MAP_FAILED : moveByCopy(call, made);
}

void* remapManaged(const Remap& call) {
  if (call.has(MREMAP_FIXED)) {
    return moveOrFail(call, mmap(call.target, call.new_size, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0));
  }
  if (call.new_size == call.old_size) return call.address;
  if (call.new_size < call.old_size) {
    const int cut = munmap(call.address + call.new_size, call.old_size - call.new_size);
    return cut == 0 ? call.address : MAP_FAILED;
  }
  if (growInPlace(call)) return call.address;
  if (!call.has(MREMAP_MAYMOVE)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return moveOrFail(call, mapManaged(call.new_size, PROT_READ | PROT_WRITE));
}

/// Moves what the kernel has, in as few steps as its mappings allow. `more` is added at the end.
bool movePieces(std::byte* from, size_t size, std::byte* to, size_t more, int flags) {
  if (raw::mremap(from, size, size + more, flags | MREMAP_MAYMOVE | MREMAP_FIXED, to) == to) {
    return true;
  }
  if (errno != EFAULT || size == kPageSize) return false;
  const size_t half = roundUp(size / 2, kPageSize);
  return movePieces(from, half, to, 0, flags) &&
         movePieces(from + half, size - half, to + half, more, flags);
}

/// All of it, and it is not empty. Leaves errno alone.
bool isMapped(std::byte* start, size_t size) {
  unsigned char pages[4096];
  const int saved_errno = errno;
  bool mapped = size > 0;
  for (size_t at = 0; mapped && at < size; at += sizeof pages * kPageSize) {
    mapped = raw::mincore(start + at, std::min(size - at, sizeof pages * kPageSize), pages) == 0;
  }
  errno = saved_errno;
  return mapped;
}

/// What was taken out of the runtime's care is one mapping to the program, but may be several to
/// the kernel, which it does not move in one go; also after it was moved out of the managed space.
void* moveKernels(Remap call) {
  void* const moved =
      passed::mremap(call.address, call.old_size, call.new_size, call.flags, call.target);
  if (moved != MAP_FAILED || errno != EFAULT || !call.has(MREMAP_MAYMOVE) || !anySurrendered() ||
      !isMapped(call.address, call.old_size)) {
    return moved;
  }
  if (call.new_size < call.old_size) {
    raw::munmap(call.address + call.new_size, call.old_size - call.new_size);
    call.old_size = call.new_size;
  }
  if (!call.has(MREMAP_FIXED)) {
    void* const room = raw::reserve(call.new_size);
    if (room == MAP_FAILED) return MAP_FAILED;
    call.target = static_cast<std::byte*>(room);
  }
  const size_t more = call.new_size - call.old_size;
  if (movePieces(call.address, call.old_size, call.target, more, call.flags)) return call.target;
  return MAP_FAILED;
}

/// Who has all of the range; kNobody if nobody or several have.
Owner ownerOf(uintptr_t address, size_t size) {
  InternalScope scope;
  const Piece piece = pieceAt(address, size);
  return piece.size == size ? piece.owner : Owner::kNobody;
}

/// The kernel is about to unmap the target of a move, which is at least partly managed.
bool clearTarget(uintptr_t target, size_t size) {
  return mapFixedOverManaged(reinterpret_cast<void*>(target), size, PROT_NONE,
                             MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

TP_EXPORT void* mremap(void* address, size_t old_size, size_t new_size, int flags, ...) noexcept {
  void* target = nullptr;
  if ((flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) != 0) {
    va_list args;
    va_start(args, flags);
    target = va_arg(args, void*);
    va_end(args);
  }
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  const uintptr_t to = reinterpret_cast<uintptr_t>(target);
  size_t old_rounded = old_size, new_rounded = new_size;
  if (!managing() || !validRange(start, old_rounded) || !validRange(start, new_rounded)) {
    return passed::mremap(address, old_size, new_size, flags, target);
  }
  const size_t source_size = std::max(old_rounded, kPageSize);
  if (touchesManaged(start, source_size) && ownerOf(start, source_size) != Owner::kKernel) {
    const Remap call{static_cast<std::byte*>(address), old_rounded, new_rounded, flags,
                     static_cast<std::byte*>(target)};
    const bool valid = isValid(call);
    if (!valid || ownerOf(start, source_size) != Owner::kRuntime) {
      errno = valid ? EFAULT : EINVAL;
      return MAP_FAILED;
    }
    if (!call.has(MREMAP_DONTUNMAP)) return remapManaged(call);
    // Who stores to the old place goes on doing so, and must neither wait for a copy nor lose what
    // was stored before: the kernel moves the pages themselves.
    if (surrenderInPlace(address, old_rounded) != 0) return MAP_FAILED;
  }
  if ((flags & MREMAP_FIXED) != 0 && validRange(to, new_rounded) &&
      touchesManaged(to, new_rounded) && !clearTarget(to, new_rounded)) {
    return MAP_FAILED;
  }
  return moveKernels({static_cast<std::byte*>(address), old_rounded, new_rounded, flags,
                      static_cast<std::byte*>(target)});
}

}  // extern "C"
