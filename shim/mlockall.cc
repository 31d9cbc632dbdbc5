// SPDX-License-Identifier: Apache-2.0
// mlockall(2) of a managed program. Left to the kernel, it would bring in all memory, however far,
// and Tidepool's reserves with it, and nothing could leave any more: the very thing that the user
// asked for less of. So what is locked is the code and data of the program and its libraries.
// mlock(2) of a range is left to the kernel: it keeps those pages in local memory. Thread-safe.
#include <link.h>

#include <cerrno>

#include "allocator/arena/raw_syscalls.h"
#include "shim/export.h"
#include "shim/next.h"
#include "shim/pieces.h"

namespace tidepool {
namespace {

int lockObject(dl_phdr_info* object, size_t, void* argument) {
  const int flags = *static_cast<const int*>(argument);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_R) == 0) continue;
    const uintptr_t address = object->dlpi_addr + segment.p_vaddr;
    if (raw::lockOnFault(address, segment.p_memsz) != 0) return -1;
    // The kernel's mlockall, too, passes over pages that cannot be brought in.
    if ((flags & MCL_ONFAULT) == 0) raw::lock(address, segment.p_memsz);
  }
  return 0;
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" TP_EXPORT int mlockall(int flags) noexcept {
  if (!managing() && !wake()) {
    return passOn(
        next_calls.mlockall, [](int what) { return static_cast<int>(syscall(SYS_mlockall, what)); },
        flags);
  }
  if ((flags & ~(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)) != 0 || flags == 0 ||
      flags == MCL_ONFAULT) {
    errno = EINVAL;
    return -1;
  }
  return (flags & MCL_CURRENT) == 0 ? 0 : dl_iterate_phdr(lockObject, &flags);
}
