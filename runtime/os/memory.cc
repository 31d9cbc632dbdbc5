// SPDX-License-Identifier: Apache-2.0
// Memory calls through syscall(2), so that an interposed mmap is not re-entered. Thread-safe.
#include "runtime/os/memory.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/numbers.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/file_size.h"
#include "runtime/os/kernel_uapi.h"
#include "runtime/os/proc_files.h"

namespace tidepool::os {
namespace {

void* sysMmap(uintptr_t address, uint64_t size, int protection, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(raw::call(SYS_mmap, address, size, protection, flags, fd, offset));
}

Status mapFixed(uintptr_t address, Bytes size, int protection, int flags, int fd, Bytes offset,
                const char* what) {
  TP_CHECK(address != 0 && address % kPageSize == 0);  // it replaces what is there
  void* got = sysMmap(address, size.value(), protection, flags | MAP_FIXED, fd,
                      static_cast<off_t>(offset.value()));
  if (got == MAP_FAILED) {
    return failErrno(ErrorCode::kNoMemory, "cannot map %s of %llu bytes%s", what,
                     static_cast<unsigned long long>(size.value()),
                     errno == ENOMEM ? " (vm.max_map_count or RLIMIT_AS may be too low)" : "");
  }
  return {};
}

bool adviseAway(uintptr_t address, Bytes size, int advice) {
  while (raw::call(SYS_madvise, address, size.value(), advice) != 0) {
    if (errno != EAGAIN) return false;
  }
  return true;
}

}  // namespace

Result<uintptr_t> reserve(Bytes size, Bytes alignment) {
  TP_CHECK(std::has_single_bit(alignment.value()));
  const uint64_t padded = size.value() + alignment.value();
  void* got = sysMmap(0, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) {
    return failErrno(ErrorCode::kNoMemory,
                     "cannot reserve %llu GiB of address space; lower it with --conf space:SIZE or "
                     "raise RLIMIT_AS",
                     static_cast<unsigned long long>(size.value() / kGiB));
  }
  const uintptr_t start = reinterpret_cast<uintptr_t>(got);
  const uintptr_t aligned = roundUp(start, alignment.value());
  if (aligned > start) unmap(start, Bytes(aligned - start));
  const uintptr_t end = aligned + size.value();
  if (start + padded > end) unmap(end, Bytes(start + padded - end));
  return aligned;
}

bool reserveAt(uintptr_t address, Bytes size) {
  void* got = sysMmap(address, size.value(), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == MAP_FAILED) return false;
  if (got == reinterpret_cast<void*>(address)) return true;
  // Before Linux 4.17 the address is a mere hint.
  unmap(reinterpret_cast<uintptr_t>(got), size);
  return false;
}

uint64_t randomBelow(uint64_t end) {
  constexpr unsigned long kAsk = 0xffffffff;
  uint64_t number = 0;
  if ((raw::call(SYS_personality, kAsk) & ADDR_NO_RANDOMIZE) != 0) return 0;
  const long got = raw::call(SYS_getrandom, &number, sizeof number, GRND_NONBLOCK);
  return got == sizeof number ? number % end : 0;
}

void unmap(uintptr_t address, Bytes size) { raw::call(SYS_munmap, address, size.value()); }

Status mapFresh(uintptr_t address, Bytes size) {
  return mapFixed(address, size, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, Bytes(), "memory");
}

Status mapNothing(uintptr_t address, Bytes size) {
  return mapFixed(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                  Bytes(), "an empty range");
}

Status mapUnused(uintptr_t address, Bytes size) {
  TP_TRY(mapNothing(address, size));
  leaveOutOfDumps(address, size);
  return {};
}

Status mapShared(uintptr_t address, int fd, Bytes offset, Bytes size) {
  return mapFixed(address, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset, "a granule");
}

Status protect(uintptr_t address, Bytes size, int protection) {
  if (raw::call(SYS_mprotect, address, size.value(), protection) != 0) {
    return failErrno(ErrorCode::kNoMemory, "mprotect of %llu bytes",
                     static_cast<unsigned long long>(size.value()));
  }
  return {};
}

Status discard(uintptr_t address, Bytes size) {
  constexpr int kDontNeedLocked = 24;  // MADV_DONTNEED_LOCKED, Linux 5.18
  if (adviseAway(address, size, MADV_DONTNEED) || adviseAway(address, size, kDontNeedLocked)) {
    return {};
  }
  return failErrno(ErrorCode::kInternal, "cannot discard %llu bytes",
                   static_cast<unsigned long long>(size.value()));
}

void keepFromChildren(uintptr_t address, Bytes size) {
  [[maybe_unused]] const bool done = adviseAway(address, size, MADV_DONTFORK);
}

Status keepFromDumps(uintptr_t address, Bytes size) {
  if (adviseAway(address, size, MADV_DONTDUMP)) return {};
  return failErrno(ErrorCode::kNoMemory, "cannot keep %llu bytes from core dumps",
                   static_cast<unsigned long long>(size.value()));
}

Status dumpAgain(uintptr_t address, Bytes size) {
  if (adviseAway(address, size, MADV_DODUMP)) return {};
  return failErrno(ErrorCode::kNoMemory, "cannot let core dumps have %llu bytes",
                   static_cast<unsigned long long>(size.value()));
}

Bytes discardUnlocked(uintptr_t address, Bytes size) {
  if (adviseAway(address, size, MADV_DONTNEED)) return size;
  // What lies before the first locked page is gone, how much that is the kernel does not say.
  uint64_t done = 0;
  while (done < size.value() && adviseAway(address + done, Bytes(kPageSize), MADV_DONTNEED)) {
    done += kPageSize;
  }
  return Bytes(done);
}

bool populate(uintptr_t address, Bytes size) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14
  return raw::call(SYS_madvise, address, size.value(), kPopulateWrite) == 0;
}

// Writing to a page that is shared since a fork() makes it one's own.
bool unshare(uintptr_t address, Bytes size) { return populate(address, size); }

Status moveMapping(uintptr_t from, uintptr_t to, Bytes size) {
  const long got = raw::call(SYS_mremap, from, size.value(), size.value(),
                             MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to);
  if (got == -1) return failErrno(ErrorCode::kNoMemory, "cannot move a mapping");
  return {};
}

void zapShared(uintptr_t address, Bytes size) {
  raw::call(SYS_madvise, address, size.value(), MADV_DONTNEED);
}

bool makeHuge(uintptr_t address, Bytes size) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  return raw::call(SYS_madvise, address, size.value(), kCollapse) == 0;
}

void leaveOutOfDumps(uintptr_t address, Bytes size) {
  raw::call(SYS_madvise, address, size.value(), MADV_DONTDUMP);
}

void includeInDumps(uintptr_t address, Bytes size) {
  raw::call(SYS_madvise, address, size.value(), MADV_DODUMP);
}

Status punchHole(int fd, Bytes offset, Bytes size) {
  if (raw::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(offset.value()), static_cast<off_t>(size.value())) != 0) {
    return failErrno(ErrorCode::kUnsupported, "cannot free a range of the pool file");
  }
  return {};
}

namespace {

/// `seals`: 0 for none.
Result<UniqueFd> newMemfd(const char* name, Bytes size, int seals) {
  UniqueFd fd(raw::memfd_create(name, MFD_CLOEXEC | (seals != 0 ? MFD_ALLOW_SEALING : 0u)));
  if (!fd.valid() || !setFileSize(fd.get(), size) ||
      (seals != 0 && raw::fcntl(fd.get(), F_ADD_SEALS, seals) != 0)) {
    return failErrno(ErrorCode::kNoMemory, "cannot create the memory file %s of %llu bytes%s", name,
                     static_cast<unsigned long long>(size.value()), fileLimitAdvice(errno));
  }
  fd.keep();
  return fd;
}

}  // namespace

Result<UniqueFd> createMemfd(const char* name, Bytes size) { return newMemfd(name, size, 0); }

Result<UniqueFd> createSealedMemfd(const char* name, Bytes size) {
  return newMemfd(name, size, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

uint32_t mostProcesses() {
  constexpr uint32_t kKernelsDefault = 32768, kKernelsLimit = 1u << 22;
  char text[16];
  if (!readProc("sys/kernel/pid_max", text, sizeof text)) return kKernelsDefault;
  return std::clamp(static_cast<uint32_t>(numberAt(text)), 64u, kKernelsLimit);
}

Result<UniqueFd> openStatm() {
  UniqueFd fd = openProc("self/statm", O_RDONLY);
  if (!fd.valid()) return failErrno(ErrorCode::kPermission, "cannot read /proc/self/statm");
  fd.keep();
  return fd;
}

Bytes anonymousMemory(int statm) {
  char text[128];
  const ssize_t got = raw::pread(statm, text, sizeof text - 1, 0);
  if (got <= 0) return Bytes();
  text[got] = '\0';
  const char* cursor = text;
  numberAt(cursor, &cursor);  // total size
  const uint64_t resident = numberAt(cursor, &cursor);
  const uint64_t shared = numberAt(cursor, &cursor);
  return toBytes(PageCount(resident > shared ? resident - shared : 0));
}

Result<UniqueFd> openStat() {
  UniqueFd fd = openProc("self/stat", O_RDONLY);
  if (!fd.valid()) return failErrno(ErrorCode::kPermission, "cannot read /proc/self/stat");
  fd.keep();
  return fd;
}

LeftBehind leftBehind(int stat) {
  char text[1024];
  const ssize_t got = raw::pread(stat, text, sizeof text - 1, 0);
  if (got <= 0) return {};
  text[got] = '\0';
  // The name, field 2, may hold anything but ends at the last parenthesis; then comes the state.
  constexpr int kThreads = 20, kStatus = 52;
  const char* at = strrchr(text, ')');
  if (at == nullptr || at[1] == '\0' || at[2] != 'Z') return {};
  LeftBehind left;
  for (int field = 3; (at = strchr(at + 1, ' ')) != nullptr; ++field) {
    if (field == kThreads) left.threads = static_cast<int>(numberAt(at + 1)) - 1;
    if (field == kStatus) left.status = static_cast<int>(numberAt(at + 1)) >> 8;
  }
  return left;
}

uint32_t ownShareOfAnonymous() {
  constexpr uint32_t kAll = 1024;
  char text[2048];
  if (!readProc("self/smaps_rollup", text, sizeof text)) return kAll;
  const char* shares = strstr(text, "Pss_Anon:");
  const char* whole = strstr(text, "\nAnonymous:");
  if (shares == nullptr || whole == nullptr) return kAll;
  const uint64_t mine = numberAt(shares + strlen("Pss_Anon:"));
  const uint64_t all = numberAt(whole + strlen("\nAnonymous:"));
  return all == 0 || mine > all ? kAll : static_cast<uint32_t>(mine * kAll / all);
}

Result<UniqueFd> openPagemap() {
  UniqueFd fd = openProc("self/pagemap", O_RDONLY);
  if (!fd.valid()) return failErrno(ErrorCode::kPermission, "cannot read /proc/self/pagemap");
  fd.keep();
  return fd;
}

namespace {

Result<size_t> scan(int pagemap, uapi::PmScanArg& request, PageRun* out, size_t capacity,
                    uintptr_t* walked) {
  constexpr size_t kBatch = 256;
  uapi::PageRegion regions[kBatch];
  request.size = sizeof request;
  request.vec = reinterpret_cast<__u64>(regions);
  request.vec_len = capacity < kBatch ? capacity : kBatch;
  const int found = raw::ioctl(pagemap, uapi::kPagemapScan, &request);
  if (found < 0) return failErrno(ErrorCode::kUnsupported, "PAGEMAP_SCAN failed");
  for (int i = 0; i < found; ++i) out[i] = {regions[i].start, regions[i].end};
  *walked = request.walk_end;
  return static_cast<size_t>(found);
}

}  // namespace

Result<size_t> scanWritten(int pagemap, uintptr_t address, Bytes size, PageRun* out,
                           size_t capacity, uintptr_t* walked) {
  uapi::PmScanArg request{};
  request.start = address;
  request.end = address + size.value();
  request.category_mask = uapi::kPageIsWritten | uapi::kPageIsPresent | uapi::kPageIsWpAllowed;
  request.return_mask = uapi::kPageIsWritten;
  return scan(pagemap, request, out, capacity, walked);
}

Result<size_t> scanPresent(int pagemap, uintptr_t address, Bytes size, PageRun* out,
                           size_t capacity, uintptr_t* walked) {
  uapi::PmScanArg request{};
  request.start = address;
  request.end = address + size.value();
  request.category_mask = uapi::kPageIsPresent;
  request.return_mask = uapi::kPageIsPresent;
  return scan(pagemap, request, out, capacity, walked);
}

}  // namespace tidepool::os
