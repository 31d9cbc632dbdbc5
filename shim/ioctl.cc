// SPDX-License-Identifier: Apache-2.0
// The interposed ioctl. What the program takes into its own hands, or gives to a driver for good,
// leaves Tidepool's care first, with its contents. Two requests do that: UFFDIO_REGISTER, since a
// range has one userfaultfd at most; and NVIDIA's, by which libcuda registers memory with a device
// (cudaHostRegister). Its driver pins pages as they lie in the page tables: it does not wait for
// one that is far, but refuses; and of pages of a direct tier nobody could tell afterwards that
// they are pinned. The layout is that of NVIDIA's open kernel modules (nv-ioctl.h, nvos.h); gVisor,
// too, takes this for the one way in which the driver pins memory of a program.
#include <linux/ioctl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include <atomic>
#include <cstdarg>

#include "allocator/arena/raw_syscalls.h"
#include "runtime/os/pin_check.h"
#include "shim/export.h"
#include "shim/mapping_calls.h"
#include "shim/next.h"
#include "shim/pieces.h"
#include "shim/surrender.h"

namespace tidepool {
namespace {

int leaveToProgram(uintptr_t start, size_t size) {
  if (!managing() || size == 0 || !validRange(start, size) || !touchesManaged(start, size)) {
    return 0;
  }
  return forEachPiece(start, size, [](Owner owner, void* address, size_t length) {
    return owner == Owner::kRuntime ? surrenderInPlace(address, length) : 0;
  });
}

// Numbers of NV_ESC_RM_..., and the class and the function that stand for memory of a program.
constexpr unsigned kNvidiaType = 'F', kNvidiaMajor = 195;
constexpr unsigned kAllocMemory = 0x27, kAlloc = 0x2b, kVideoHeap = 0x4a;
constexpr uint32_t kProgramsMemory = 0x71, kAllocProgramsMemory = 27;

struct AllocMemory {  // nv_ioctl_nvos02_parameters_with_fd
  uint32_t root, parent, memory, kind, flags;
  uint64_t address, limit;  // its last byte is at address + limit
  uint32_t status;
  int fd;
};

bool isNvidias(int fd) {
  static std::atomic<bool> known{false};
  if (known.load(std::memory_order_relaxed)) return true;
  if (deviceMajor(fd) != kNvidiaMajor) return false;
  os::followNvidia(true);  // since what libcuda asks comes by here
  known.store(true, std::memory_order_relaxed);
  return true;
}

/// Looks at a request to NVIDIA's driver. 0, or -1 with errno set.
int prepareForDevice(int fd, unsigned long request, const void* argument) {
  const unsigned number = _IOC_NR(request);
  if (number == kAllocMemory && _IOC_SIZE(request) >= sizeof(AllocMemory)) {
    AllocMemory call{};
    if (!readOwn(reinterpret_cast<uintptr_t>(argument), &call, sizeof call)) return 0;
    if (call.kind != kProgramsMemory) return 0;
    const uintptr_t start = roundDown(call.address, kPageSize);
    return leaveToProgram(start, call.address + call.limit + 1 - start);
  }
  if (!isNvidias(fd) || (number != kAlloc && number != kVideoHeap)) return 0;
  // libcuda does not use these for it. Were they used, we would not know what is pinned.
  uint32_t words[4] = {};  // two handles; a function, or a third handle and a class
  if (_IOC_SIZE(request) < sizeof words ||
      !readOwn(reinterpret_cast<uintptr_t>(argument), words, sizeof words)) {
    return 0;
  }
  if (number == kAlloc ? words[3] == kProgramsMemory : words[2] == kAllocProgramsMemory) {
    os::followNvidia(false);
  }
  return 0;
}

int prepare(int fd, unsigned long request, const void* argument) {
  if (argument == nullptr || t_thread_mode == ThreadMode::kInternal) return 0;
  if (request == UFFDIO_REGISTER) {
    const auto& range = static_cast<const uffdio_register*>(argument)->range;
    return leaveToProgram(range.start, range.len);
  }
  if (_IOC_TYPE(request) != kNvidiaType || _IOC_DIR(request) != (_IOC_READ | _IOC_WRITE)) return 0;
  return prepareForDevice(fd, request, argument);
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

TP_EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list args;
  va_start(args, request);
  void* argument = va_arg(args, void*);
  va_end(args);
  if (prepare(fd, request, argument) != 0) return -1;
  return passOn(
      next_calls.ioctl,
      [](int its, unsigned long what, void* with) {
        return static_cast<int>(syscall(SYS_ioctl, its, what, with));
      },
      fd, request, argument);
}

}  // extern "C"
