// SPDX-License-Identifier: Apache-2.0
// A DAX device has no read() or write(): it is mapped, a piece at a time.
#include "fabricmgr/cxl/dax_bytes.h"

#include <fcntl.h>
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace tidepool::cxl {
namespace {

constexpr uint64_t kMapped = 16 * kMiB;  // at once: a multiple of every alignment but 1 GiB
constexpr uint64_t kCopied = 64 * 1024;
constexpr uint64_t kLine = 64;

/// Out of the caches of all processors of this host, to the device.
void flush(const std::byte* at, uint64_t length) {
  for (uint64_t line = 0; line < length; line += kLine) _mm_clflush(at + line);
  _mm_mfence();
}

// One string instruction for many bytes: processors have a fast path for those, and an emulator
// does not have to translate every single access to a device anew, as it does in a loop.
void copyWords(std::byte* to, const std::byte* from, uint64_t length) {
  uint64_t words = length / sizeof(uint64_t);
  asm volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words) : : "memory");
}

void zeroWords(std::byte* at, uint64_t length) {
  uint64_t words = length / sizeof(uint64_t);
  asm volatile("rep stosq" : "+D"(at), "+c"(words) : "a"(0) : "memory");
}

/// `work` for each mapped piece.
template <typename Work>
Status forPieces(const UniqueFd& dax, uint64_t offset, Bytes length, Work work) {
  const uint64_t end = offset + length.value();
  for (uint64_t at = offset; at < end;) {
    const uint64_t piece = std::min(kMapped, end - at);
    void* mapped =
        mmap(nullptr, piece, PROT_READ | PROT_WRITE, MAP_SHARED, dax.get(), static_cast<off_t>(at));
    if (mapped == MAP_FAILED) return failErrno(ErrorCode::kIo, "cannot map a DAX device");
    work(static_cast<std::byte*>(mapped), piece);
    munmap(mapped, piece);
    at += piece;
  }
  return {};
}

}  // namespace

Result<UniqueFd> openDax(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.valid()) return file;
  const ErrorCode code = errno == EACCES ? ErrorCode::kPermission : ErrorCode::kUnreachable;
  return failErrno(code, "cannot open %.150s", path.c_str());
}

Status zeroBytes(const UniqueFd& dax, uint64_t offset, Bytes length) {
  return forPieces(dax, offset, length, [](std::byte* at, uint64_t piece) {
    zeroWords(at, piece);
    flush(at, piece);
  });
}

Status readBytes(const UniqueFd& dax, uint64_t offset, Bytes length, const SeeBytes& see) {
  std::vector<std::byte> copy(kCopied);
  return forPieces(dax, offset, length, [&](std::byte* at, uint64_t piece) {
    flush(at, piece);
    for (uint64_t done = 0; done < piece; done += kCopied) {
      const uint64_t size = std::min(kCopied, piece - done);
      copyWords(copy.data(), at + done, size);
      see(std::span(copy).first(size));
    }
  });
}

}  // namespace tidepool::cxl
