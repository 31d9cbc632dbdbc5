// SPDX-License-Identifier: Apache-2.0
// See pieces.h. Takes the lock of the runtime's map of addresses, by itself.
#include "shim/pieces.h"

#include <algorithm>

#include "runtime/base/own_space.h"

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

Piece pieceAt(uintptr_t address, size_t size) {
  const OwnSpace::Span own = ownSpace().spanAt(address, size);
  size = own.size;
  if (own.own) return {Owner::kNobody, size};
  const ManagedBounds bounds = managed_bounds;
  if (address < bounds.base) return {Owner::kKernel, std::min<size_t>(size, bounds.base - address)};
  const uintptr_t end = bounds.base + bounds.size;
  if (address >= end) return {Owner::kKernel, size};
  const OwnerSpan span = managed_runtime->ownerAt(reinterpret_cast<void*>(address),
                                                  Bytes(std::min<size_t>(size, end - address)));
  return {span.owner, span.size.value()};
}

}  // namespace tidepool
