// SPDX-License-Identifier: Apache-2.0
// Mapping: RAII over mmap and munmap. Anonymous memory is asked of the kernel directly: a preload
// library would manage what it sees, and this is memory that nobody may move.
#include "runtime/base/mapping.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace tidepool {
namespace {

// Sanitizers have to see which addresses are used anew.
#ifdef TIDEPOOL_SANITIZED
void* mapAnonymous(size_t size) {
  return mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
              -1, 0);
}
int unmap(void* address, size_t size) { return munmap(address, size); }
#else
void* mapAnonymous(size_t size) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, nullptr, size, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L));
}
int unmap(void* address, size_t size) {
  return static_cast<int>(syscall(SYS_munmap, address, size));
}
#endif

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)),
      size_(std::exchange(other.size_, Bytes())) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (address_ != nullptr) unmap(address_, size_.value());
}

Result<Mapping> Mapping::anonymous(Bytes size) {
  void* const address = mapAnonymous(size.value());
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
