// SPDX-License-Identifier: Apache-2.0
// See file_size.h.
#include "runtime/os/file_size.h"

#include "runtime/base/raw_calls.h"
#include "runtime/base/write_signals.h"

namespace tidepool::os {

Bytes largestFile() {
  rlimit limit{};
  if (raw::prlimit(RLIMIT_FSIZE, nullptr, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return Bytes(INT64_MAX);
  }
  return Bytes(limit.rlim_cur);
}

bool setFileSize(int fd, Bytes size) {
  const WriteSignalsHeld held;
  return raw::ftruncate(fd, static_cast<off_t>(size.value())) == 0;
}

const char* fileLimitAdvice(int os_error) {
  return os_error == EFBIG ? "; raise the limit on file sizes (ulimit -f, RLIMIT_FSIZE)" : "";
}

}  // namespace tidepool::os
