// SPDX-License-Identifier: Apache-2.0
// Mapping: RAII over mmap. The kernel is asked directly: a preload library would manage what it
// sees, and this is memory that nobody may move.
#include "runtime/base/mapping.h"

#include <utility>

#include "runtime/base/own_space.h"
#include "runtime/base/raw_calls.h"

namespace tidepool {
namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE;
constexpr int kPlain = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

/// As the kernel would align it: huge pages are of use in what is large enough for them, and a
/// device may want a gigabyte.
Bytes alignmentOf(Bytes size) {
  if (size.value() >= kGiB) return Bytes(kGiB);
  return Bytes(size.value() >= kGranuleSize ? kGranuleSize : kPageSize);
}

/// MAP_FAILED, and errno, where there is no room.
void* mapOwn(Bytes size, int protection, int flags, int fd, Bytes offset) {
  const auto file_offset = static_cast<off_t>(offset.value());
  // Sanitizers have to see which addresses are used anew.
  if (!kOwnSpaceUsed) return ::mmap(nullptr, size.value(), protection, flags, fd, file_offset);
  const uintptr_t place = ownSpace().take(size, alignmentOf(size));
  if (place == 0) return MAP_FAILED;
  void* const at = reinterpret_cast<void*>(place);
  if (raw::mmap(at, size.value(), protection, flags | MAP_FIXED, fd, file_offset) != at) {
    const int why = errno;
    ownSpace().giveBack(place, size);
    errno = why;
    return MAP_FAILED;
  }
  raw::madvise(at, size.value(), MADV_DONTDUMP);
  return at;
}

void unmap(void* address, Bytes size) {
  const auto place = reinterpret_cast<uintptr_t>(address);
  if (kOwnSpaceUsed && ownSpace().contains(place)) {
    ownSpace().giveBack(place, size);
  } else if (kOwnSpaceUsed) {
    raw::munmap(address, size.value());
  } else {
    ::munmap(address, size.value());
  }
}

}  // namespace

const char* memoryLimitHint() {
  const auto limited = [](int which) {
    rlimit limit{};
    return raw::prlimit(which, nullptr, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  };
  const bool space = limited(RLIMIT_AS), data = limited(RLIMIT_DATA);
  if (space && data) return " (RLIMIT_AS or RLIMIT_DATA is too low: ulimit -v, ulimit -d)";
  if (space) return " (RLIMIT_AS is too low: ulimit -v)";
  return data ? " (RLIMIT_DATA is too low: ulimit -d)" : "";
}

Mapping::Mapping(Mapping&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)),
      size_(std::exchange(other.size_, Bytes())) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (address_ != nullptr) unmap(address_, size_);
}

Result<Mapping> Mapping::anonymous(Bytes size) {
  void* const address = mapOwn(size, kReadWrite, kPlain, -1, Bytes());
  if (address == MAP_FAILED) {
    return failErrno(ErrorCode::kNoMemory, "cannot map %llu bytes of memory%s",
                     static_cast<unsigned long long>(size.value()), memoryLimitHint());
  }
  return Mapping(address, size);
}

Result<Mapping> Mapping::sharedFile(int fd, Bytes offset, Bytes size) {
  void* const address = mapOwn(size, kReadWrite, MAP_SHARED, fd, offset);
  if (address == MAP_FAILED) {
    return failErrno(ErrorCode::kNoMemory, "cannot map %llu bytes of a file at offset %llu",
                     static_cast<unsigned long long>(size.value()),
                     static_cast<unsigned long long>(offset.value()));
  }
  return Mapping(address, size);
}

Result<Mapping> Mapping::sharedFileReadable(int fd, Bytes size) {
  void* const address = mapOwn(size, PROT_READ, MAP_SHARED, fd, Bytes());
  if (address == MAP_FAILED) {
    return failErrno(ErrorCode::kNoMemory, "cannot map %llu bytes of a file",
                     static_cast<unsigned long long>(size.value()));
  }
  return Mapping(address, size);
}

Result<Mapping> Mapping::sharedAnonymous(Bytes size) {
  void* const address =
      mapOwn(size, kReadWrite, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, Bytes());
  if (address == MAP_FAILED) {
    return failErrno(ErrorCode::kNoMemory, "cannot map %llu bytes of shared memory",
                     static_cast<unsigned long long>(size.value()));
  }
  return Mapping(address, size);
}

Result<Mapping> Mapping::reserved(Bytes size, Bytes alignment) {
  if (kOwnSpaceUsed) {
    const uintptr_t place = ownSpace().take(size, alignment);
    if (place != 0) return Mapping(reinterpret_cast<void*>(place), size);
  } else {
    // A whole alignment more, of which the ends are given back.
    const Bytes padded = size + alignment;
    void* const found = ::mmap(nullptr, padded.value(), PROT_NONE, kPlain, -1, 0);
    if (found != MAP_FAILED) {
      const auto start = reinterpret_cast<uintptr_t>(found);
      const uintptr_t at = roundUp(start, alignment.value());
      if (at > start) ::munmap(found, at - start);
      ::munmap(reinterpret_cast<void*>(at + size.value()), start + alignment.value() - at);
      return Mapping(reinterpret_cast<void*>(at), size);
    }
  }
  return failErrno(ErrorCode::kNoMemory, "cannot reserve %llu bytes of address space%s",
                   static_cast<unsigned long long>(size.value()), memoryLimitHint());
}

}  // namespace tidepool
