// SPDX-License-Identifier: Apache-2.0
// Mapping: RAII over mmap and munmap.
#include "runtime/base/mapping.h"

#include <sys/mman.h>

#include <utility>

namespace tidepool {

Mapping::Mapping(Mapping&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)),
      size_(std::exchange(other.size_, Bytes())) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (address_ != nullptr) munmap(address_, size_.value());
}

Result<Mapping> Mapping::anonymous(Bytes size) {
  void* address = mmap(nullptr, size.value(), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return failErrno(ErrorCode::kNoMemory, "cannot map %llu bytes of memory",
                     static_cast<unsigned long long>(size.value()));
  }
  return Mapping(address, size);
}

Result<Mapping> Mapping::sharedFile(int fd, Bytes offset, Bytes size) {
  void* address = mmap(nullptr, size.value(), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                       static_cast<off_t>(offset.value()));
  if (address == MAP_FAILED) {
    return failErrno(ErrorCode::kNoMemory, "cannot map %llu bytes of a file at offset %llu",
                     static_cast<unsigned long long>(size.value()),
                     static_cast<unsigned long long>(offset.value()));
  }
  return Mapping(address, size);
}

}  // namespace tidepool
