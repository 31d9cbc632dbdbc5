// SPDX-License-Identifier: Apache-2.0
// The interposed calls that change mappings by other ways than the mmap family's. On what is not
// managed they are the kernel's.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "runtime/base/format.h"
#include "shim/export.h"
#include "shim/mapping_calls.h"
#include "shim/next.h"
#include "shim/pieces.h"
#include "shim/surrender.h"

namespace tidepool {
namespace {

void* kernelShmat(int id, const void* address, int flags) {
  return reinterpret_cast<void*>(syscall(SYS_shmat, id, address, flags));
}
int kernelPkeyMprotect(void* address, size_t size, int protection, int key) {
  return static_cast<int>(syscall(SYS_pkey_mprotect, address, size, protection, key));
}
int kernelRemapFilePages(void* address, size_t size, int protection, size_t page, int flags) {
  return static_cast<int>(syscall(SYS_remap_file_pages, address, size, protection, page, flags));
}
ssize_t kernelProcessMadvise(int process, const iovec* ranges, size_t count, int advice,
                             unsigned flags) {
  return syscall(SYS_process_madvise, process, ranges, count, advice, flags);
}

void* passShmat(int id, const void* address, int flags) {
  return passOn(next_calls.shmat, kernelShmat, id, address, flags);
}

/// Where the kernel would attach it; 0 where it chooses, or refuses.
uintptr_t attachAddress(const void* address, int flags) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  if ((flags & SHM_RND) != 0) return roundDown(start, kPageSize);
  return start % kPageSize == 0 ? start : 0;
}

/// With SHM_REMAP, over what is managed. It is attached elsewhere first: what the kernel refuses
/// must leave everything as it is.
void* attachOver(int id, uintptr_t start, size_t size, int flags) {
  void* const trial = kernelShmat(id, nullptr, flags & ~(SHM_REMAP | SHM_RND));
  if (trial == MAP_FAILED) return trial;
  void* const there = surrenderForKernel(start, size)
                          ? passShmat(id, reinterpret_cast<void*>(start), flags)
                          : MAP_FAILED;
  const int saved_errno = errno;
  syscall(SYS_shmdt, trial);
  errno = saved_errno;
  return there;
}

/// Whether the kernel would refuse such a key or protection, whatever it is for.
bool keyIsValid(int protection, int key) {
  void* const page = raw::reserve(kPageSize);
  if (page == MAP_FAILED) return false;
  const bool valid = kernelPkeyMprotect(page, kPageSize, protection, key) == 0;
  const int saved_errno = errno;
  raw::munmap(page, kPageSize);
  errno = saved_errno;
  return valid;
}

/// The number after "Pid:" in what /proc says of a descriptor; 0 if it says nothing such.
long pidIn(const char* text) {
  const char* at = strstr(text, "Pid:");
  return at == nullptr ? 0 : strtol(at + strlen("Pid:"), nullptr, 10);
}

/// Whether a descriptor stands for this process.
bool isThisProcess(int process) {
  constexpr int kSelfThread = -10000, kSelfGroup = -10001;  // PIDFD_SELF_*, Linux 6.14
  if (process == kSelfThread || process == kSelfGroup) return true;
  char path[48], text[512];
  formatText(path, sizeof path, "/proc/self/fdinfo/%d", process);
  const int saved_errno = errno;
  const int info = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  const ssize_t got = info < 0 ? -1 : syscall(SYS_read, info, text, sizeof text - 1);
  if (info >= 0) syscall(SYS_close, info);
  errno = saved_errno;
  text[std::max<ssize_t>(got, 0)] = '\0';
  return pidIn(text) == getpid();
}

/// Whether all of it could be transferred; nothing if the kernel may not be asked.
std::optional<bool> transferOwn(long number, const void* ours, uintptr_t theirs, size_t size) {
  const iovec here = {const_cast<void*>(ours), size};
  const iovec there = {reinterpret_cast<void*>(theirs), size};
  const int saved_errno = errno;
  const ssize_t done = syscall(number, getpid(), &here, 1, &there, 1, 0);
  const bool asked = done >= 0 || errno == EFAULT;
  errno = saved_errno;
  if (!asked) return std::nullopt;
  return done == static_cast<ssize_t>(size);
}

/// As the kernel: range by range, until one fails; how much was done, if any.
ssize_t adviseOwn(const iovec* ranges, size_t count, int advice) {
  ssize_t done = 0;
  for (size_t i = 0; i < count; ++i) {
    if (madvise(ranges[i].iov_base, ranges[i].iov_len, advice) != 0) return done > 0 ? done : -1;
    done += static_cast<ssize_t>(ranges[i].iov_len);
  }
  return done;
}

}  // namespace

std::optional<unsigned> deviceMajor(int fd) {
  struct statx about;
  const long done = raw::call(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_TYPE, &about);
  if (done != 0 || !S_ISCHR(about.stx_mode)) return std::nullopt;
  return about.stx_rdev_major;
}

bool readOwn(uintptr_t from, void* to, size_t size) {
  if (const auto done = transferOwn(SYS_process_vm_readv, to, from, size)) return *done;
  memcpy(to, reinterpret_cast<const void*>(from), size);
  return true;
}

bool writeOwn(uintptr_t to, const void* from, size_t size) {
  if (const auto done = transferOwn(SYS_process_vm_writev, from, to, size)) return *done;
  memcpy(reinterpret_cast<void*>(to), from, size);
  return true;
}

}  // namespace tidepool

using namespace tidepool;

extern "C" {

TP_EXPORT void* shmat(int id, const void* address, int flags) noexcept {
  const uintptr_t start = attachAddress(address, flags);
  shmid_ds segment;
  if (start == 0 || !managing() || syscall(SYS_shmctl, id, IPC_STAT, &segment) != 0) {
    return passShmat(id, address, flags);
  }
  size_t size = segment.shm_segsz;
  if (!validRange(start, size) || !touchesManaged(start, size))
    return passShmat(id, address, flags);
  if ((flags & SHM_REMAP) != 0) return attachOver(id, start, size, flags);
  if (makeUnmapped(start, size)) return passShmat(id, address, flags);
  errno = EINVAL;
  return MAP_FAILED;
}

TP_EXPORT int posix_madvise(void* address, size_t size, int advice) noexcept {
  // libc's, too, does nothing: MADV_DONTNEED would lose what is there.
  if (advice == POSIX_MADV_DONTNEED) return 0;
  const int saved_errno = errno;
  const int failed = madvise(address, size, advice) == 0 ? 0 : errno;
  errno = saved_errno;
  return failed;
}

TP_EXPORT int pkey_mprotect(void* address, size_t size, int protection, int key) noexcept {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  size_t rounded;
  if (key == -1) return mprotect(address, size, protection);
  if (!isKernels(start, size, rounded)) {
    // Keys are the kernel's to keep.
    if (!keyIsValid(protection, key) || surrenderInPlace(address, rounded) != 0) return -1;
  }
  return passOn(next_calls.pkey_mprotect, kernelPkeyMprotect, address, size, protection, key);
}

TP_EXPORT int remap_file_pages(void* address, size_t size, int protection, size_t page,
                               int flags) noexcept {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  size_t rounded;
  if (!isKernels(start, size, rounded) &&
      forEachPiece(start, rounded, [](Owner owner, void*, size_t) {
        return owner == Owner::kRuntime || owner == Owner::kNobody ? -1 : 0;
      }) != 0) {
    errno = EINVAL;  // it is for shared mappings of files
    return -1;
  }
  return passOn(next_calls.remap_file_pages, kernelRemapFilePages, address, size, protection, page,
                flags);
}

TP_EXPORT ssize_t process_madvise(int process, const iovec* ranges, size_t count, int advice,
                                  unsigned flags) noexcept {
  constexpr size_t kMost = IOV_MAX;
  if (!managing() || count > kMost || !isThisProcess(process)) {
    return passOn(next_calls.process_madvise, kernelProcessMadvise, process, ranges, count, advice,
                  flags);
  }
  // It judges all but the ranges.
  if (kernelProcessMadvise(process, ranges, 0, advice, flags) < 0) return -1;
  iovec own[kMost];
  if (count > 0 && !readOwn(reinterpret_cast<uintptr_t>(ranges), own, count * sizeof(iovec))) {
    errno = EFAULT;
    return -1;
  }
  return adviseOwn(own, count, advice);
}

}  // extern "C"
