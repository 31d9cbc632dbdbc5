// SPDX-License-Identifier: Apache-2.0
// A program that uses userfaultfd itself: a range has one userfaultfd at most, so what the program
// registers leaves Tidepool's care first, with its contents. Only the request to register is looked
// at.
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include <cstdarg>

#include "allocator/arena/raw_syscalls.h"
#include "shim/export.h"
#include "shim/next.h"
#include "shim/pieces.h"

namespace tidepool {
namespace {

int makeRoomForProgram(const uffdio_register& request) {
  size_t size = request.range.len;
  const uintptr_t start = request.range.start;
  if (size == 0 || !validRange(start, size) || !touchesManaged(start, size)) return 0;
  return forEachPiece(start, size, [](Owner owner, void* address, size_t length) {
    return owner == Owner::kRuntime ? surrenderInPlace(address, length) : 0;
  });
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
  if (request == UFFDIO_REGISTER && argument != nullptr && t_thread_mode != ThreadMode::kInternal &&
      managing() && makeRoomForProgram(*static_cast<const uffdio_register*>(argument)) != 0) {
    return -1;
  }
  return passOn(
      next_calls.ioctl,
      [](int its, unsigned long what, void* with) {
        return static_cast<int>(syscall(SYS_ioctl, its, what, with));
      },
      fd, request, argument);
}

}  // extern "C"
