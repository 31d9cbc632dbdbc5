// SPDX-License-Identifier: Apache-2.0
// What can be said of every FaultPort. Thread-safe, allocates nothing.
#include "runtime/os/fault_port.h"

#include <ctime>

namespace tidepool {

PortResult copyAll(FaultPort& port, uintptr_t to, const std::byte* from, Bytes size, Wake wake) {
  Bytes done;
  for (;;) {
    const PortResult result = port.copy(to + done.value(), from + done.value(), size - done, wake);
    done += result.done;
    if (done == size) return {PortOutcome::kDone, done};
    if (result.outcome == PortOutcome::kNoMemory) {
      // Long enough not to spin, short enough that a waiting thread does not notice it.
      const timespec moment{0, 1'000'000};
      nanosleep(&moment, nullptr);
    } else if (result.outcome != PortOutcome::kRetry) {
      return {result.outcome, done};
    }
  }
}

}  // namespace tidepool
