// SPDX-License-Identifier: Apache-2.0
// See pieces.h. Takes the runtime's and the surrendered ranges' table locks, each by itself.
#include "shim/pieces.h"

#include <algorithm>

#include "runtime/base/own_space.h"
#include "shim/surrendered.h"

namespace tidepool {

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

int finish(const Status& status) {
  if (status) return 0;
  errno = toErrno(status.error());
  return -1;
}

bool validRange(uintptr_t address, size_t& size) {
  const size_t rounded = roundUp(size, kPageSize);
  if ((address & (kPageSize - 1)) != 0 || rounded < size || address + rounded < address)
    return false;
  size = rounded;
  return true;
}

bool touchesManaged(uintptr_t address, size_t size) {
  if (size == 0 || address + size < address) return false;
  if (isManaged(reinterpret_cast<void*>(address))) return true;
  if (isManaged(reinterpret_cast<void*>(address + size - 1))) return true;
  const OwnSpace::Span own = ownSpace().spanAt(address, size);
  if (own.own || own.size < size) return true;
  // Larger than the whole space, from both ends.
  const ManagedBounds bounds = managed_bounds;
  return address < bounds.base && address + size > bounds.base;
}

bool liesInManaged(uintptr_t address, size_t size) {
  const ManagedBounds bounds = managed_bounds;
  const uintptr_t offset = address - bounds.base;
  return offset < bounds.size && size <= bounds.size - offset;
}

namespace {

Owner ownerOf(int protection) {
  if (protection == kNotReserved) return Owner::kKernel;
  return protection == kNotHandedOut ? Owner::kNobody : Owner::kRuntime;
}

}  // namespace

Piece pieceAt(uintptr_t address, size_t size) {
  const OwnSpace::Span own = ownSpace().spanAt(address, size);
  size = own.size;
  if (own.own) return {Owner::kNobody, size};
  const ManagedBounds bounds = managed_bounds;
  if (address < bounds.base) return {Owner::kKernel, std::min<size_t>(size, bounds.base - address)};
  const uintptr_t end = bounds.base + bounds.size;
  if (address >= end) return {Owner::kKernel, size};
  const SurrenderedSpan span = surrenderedSpan(address, std::min<size_t>(size, end - address));
  if (span.surrendered) return {Owner::kSurrendered, span.size};
  // Neighbours of different protections have the same owner.
  Piece piece{Owner::kNobody, 0};
  while (piece.size < span.size) {
    const ProtectionSpan next = managed_runtime->spanAt(
        reinterpret_cast<void*>(address + piece.size), Bytes(span.size - piece.size));
    const Owner owner = ownerOf(next.protection);
    if (piece.size > 0 && owner != piece.owner) break;
    piece = {owner, piece.size + next.size.value()};
  }
  return piece;
}

}  // namespace tidepool
