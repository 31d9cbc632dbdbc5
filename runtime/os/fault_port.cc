// SPDX-License-Identifier: Apache-2.0
// What can be said of every FaultPort. Thread-safe, allocates nothing.
#include "runtime/os/fault_port.h"

#include <algorithm>
#include <ctime>

namespace tidepool {
namespace {

/// Calls `operation(offset, size)` on the rest of a range until all of it is done or its first page
/// cannot be. The kernel refuses a range that crosses from one of its mappings into the next, which
/// protection and separate allocation both cause: such a range is halved until it does not.
template <typename Operation>
PortResult inPieces(Bytes size, Operation operation) {
  Bytes done;
  uint64_t piece = size.value();
  for (;;) {
    const PortResult result = operation(done, Bytes(std::min(piece, size.value() - done.value())));
    done += result.done;
    if (done == size) return {PortOutcome::kDone, done};
    if (result.outcome == PortOutcome::kRetry || result.outcome == PortOutcome::kDone) continue;
    const bool crosses =
        result.outcome == PortOutcome::kAbsent || result.outcome == PortOutcome::kInvalid;
    if (!crosses || piece <= kPageSize) return {result.outcome, done};
    piece = roundUp(piece / 2, kPageSize);
  }
}

}  // namespace

PortResult copyAll(FaultPort& port, uintptr_t to, const std::byte* from, Bytes size, Wake wake,
                   Arm writes) {
  return inPieces(size, [&](Bytes offset, Bytes piece) {
    for (;;) {
      const PortResult result =
          port.copy(to + offset.value(), from + offset.value(), piece, wake, writes);
      if (result.outcome != PortOutcome::kNoMemory || result.done.value() > 0) return result;
      // Long enough not to spin, short enough that a waiting thread does not notice it.
      const timespec moment{0, 1'000'000};
      nanosleep(&moment, nullptr);
    }
  });
}

PortResult moveAll(FaultPort& port, uintptr_t to, uintptr_t from, Bytes size, Wake wake) {
  return inPieces(size, [&](Bytes offset, Bytes piece) {
    return port.move(to + offset.value(), from + offset.value(), piece, wake);
  });
}

}  // namespace tidepool
