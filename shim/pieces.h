// SPDX-License-Identifier: Apache-2.0
// Whose memory is it? A call on a range of addresses is cut into pieces of one owner, and each
// piece goes to that owner. For the interposed memory calls. Thread-safe; sizes are bytes, ranges
// are page-aligned. Errors end in errno, as the kernel's do.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "runtime/base/check.h"
#include "shim/engine.h"

namespace tidepool {

/// 0, or -1 with errno set: the way system calls end.
int finish(const Status& status);
int toErrno(const Error& error);

/// As the kernel checks it: page-aligned start, a size that does not wrap. Rounds `size` up.
bool validRange(uintptr_t address, size_t& size);

/// True if any byte of the range is in the managed space, or in address space of our own
/// (runtime/base/own_space.h).
bool touchesManaged(uintptr_t address, size_t size);

/// True if all of it is.
bool liesInManaged(uintptr_t address, size_t size);

/// Of the managed space as its map of addresses says. Address space of our own is nobody's, the
/// rest is the kernel's.
struct Piece {
  Owner owner;
  size_t size;
};

/// The longest piece at `address`, at most `size`, that has one owner.
Piece pieceAt(uintptr_t address, size_t size);

/// Calls `act(owner, address, size)` on each piece in turn; stops at the first that fails.
template <typename Act>
int forEachPiece(uintptr_t address, size_t size, Act act) {
  InternalScope scope;
  while (size > 0) {
    const Piece piece = pieceAt(address, size);
    TP_CHECK(piece.size > 0 && piece.size <= size);
    if (const int result = act(piece.owner, reinterpret_cast<void*>(address), piece.size)) {
      return result;
    }
    address += piece.size;
    size -= piece.size;
  }
  return 0;
}

/// For a call that demands mapped memory throughout.
inline int refuseHole() {
  errno = ENOMEM;
  return -1;
}

/// Fresh managed memory of a page-aligned size, or MAP_FAILED.
void* mapManaged(size_t size, int protection);
/// MAP_FIXED onto a range that is at least partly managed.
void* mapFixedOverManaged(void* address, size_t size, int protection, int flags, int fd,
                          off_t offset);
/// False if anything of the runtime's is mapped there. Else what it merely keeps is unmapped, and
/// the kernel judges the rest.
bool makeUnmapped(uintptr_t address, size_t size);
/// True for a range that only the kernel has to do with: it also judges what is malformed.
bool isKernels(uintptr_t address, size_t size, size_t& rounded);
/// madvise() of a range, ours or not.
int advisePieces(uintptr_t address, size_t size, int advice);
/// mprotect() of a range, ours or not.
int protectPieces(uintptr_t address, size_t size, int protection);
/// Ends the use of a range, ours or not.
int unmapPieces(uintptr_t address, size_t size);

}  // namespace tidepool
