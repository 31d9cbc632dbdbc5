// SPDX-License-Identifier: Apache-2.0
// sched_setattr(2) with a slice of its own for an ordinary thread. See time_slice.h.
#include "runtime/base/time_slice.h"

#include <cstdint>

#include "runtime/base/raw_calls.h"

namespace tidepool {
namespace {

constexpr uint64_t kSliceNs = 100'000;  // the least that the kernel grants

/// The kernel's first version of the structure (SCHED_ATTR_SIZE_VER0).
struct SchedulingAttributes {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime;
  uint64_t deadline;
  uint64_t period;
};
static_assert(sizeof(SchedulingAttributes) == 48);

}  // namespace

void askShortSlice() {
  SchedulingAttributes now{};
  if (raw::call(SYS_sched_getattr, 0, &now, sizeof now, 0) != 0) return;
  constexpr uint32_t kOrdinary = 0;  // SCHED_OTHER: any other choice is somebody's on purpose
  if (now.policy != kOrdinary) return;
  now.size = sizeof now;
  now.runtime = kSliceNs;
  raw::call(SYS_sched_setattr, 0, &now, 0);
}

}  // namespace tidepool
