// SPDX-License-Identifier: Apache-2.0
// Reads a thread's processor from /proc/self/task/TID/stat, without allocation.
#include "runtime/os/cpu_follower.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/base/format.h"
#include "runtime/base/numbers.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/proc_files.h"

namespace tidepool::os {
CpuFollower::CpuFollower() {
  CPU_ZERO(&allowed_);
  raw::call(SYS_sched_getaffinity, 0, sizeof allowed_, &allowed_);
}

int CpuFollower::cpuOf(int thread) {
  if (thread != stat_of_) {
    char path[64];
    formatText(path, sizeof path, "self/task/%d/stat", thread);
    stat_ = openProc(path, O_RDONLY);
    stat_.keep();
    stat_of_ = thread;
  }
  char text[1024];
  const ssize_t got = raw::pread(stat_.get(), text, sizeof text - 1, 0);
  if (got <= 0) {
    stat_of_ = 0;  // it has ended; its number may be another's next time
    return -1;
  }
  text[got] = '\0';
  // The name, field 2, may hold anything but ends at the last parenthesis; the processor is 39.
  const char* at = strrchr(text, ')');
  for (int field = 2; at != nullptr && field < 39; ++field) at = strchr(at + 1, ' ');
  return at != nullptr ? static_cast<int>(numberAt(at + 1)) : -1;
}

void CpuFollower::servedSeveral() {
  last_cpu_ = -1;
  if (++several_ >= kLookEvery && bound_ >= 0) bind(-1);
}

void CpuFollower::served(int thread, bool strayed) {
  several_ = 0;
  const bool due = ++served_ % kLookEvery == 0;
  const bool hinted = strayed && listens();
  if (!due && !hinted) return;
  const int cpu = cpuOf(thread);
  if (cpu < 0 || cpu >= CPU_SETSIZE) return;
  const bool same_thread = thread == last_thread_;
  if (!due) {
    const bool right = same_thread && cpu != bound_;
    rate(right);
    if (!right) return;
  }
  const bool again = cpu == last_cpu_ || !due;
  last_cpu_ = cpu;
  last_thread_ = thread;
  if (cpu == bound_) return;
  if (again && CPU_ISSET(static_cast<size_t>(cpu), &allowed_)) {
    bind(cpu);
  } else if (!same_thread && bound_ >= 0) {
    bind(-1);
  }
}

bool CpuFollower::listens() {
  if (deaf_for_ == 0) return true;
  --deaf_for_;
  return false;
}

void CpuFollower::rate(bool right) {
  patience_ = right ? 1 : std::min(patience_ * 2, kMostPatience);
  deaf_for_ = right ? 0 : patience_;
}

void CpuFollower::bind(int cpu) {
  cpu_set_t set = allowed_;
  if (cpu >= 0) {
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(cpu), &set);
  }
  // A refusal costs time only.
  if (raw::call(SYS_sched_setaffinity, 0, sizeof set, &set) == 0) bound_ = cpu;
}

CpuAvoider::CpuAvoider() {
  CPU_ZERO(&allowed_);
  raw::call(SYS_sched_getaffinity, 0, sizeof allowed_, &allowed_);
}

void CpuAvoider::avoid(int cpu) {
  if (cpu == avoided_) return;
  cpu_set_t set = allowed_;
  if (cpu >= 0) CPU_CLR(static_cast<size_t>(cpu), &set);
  if (CPU_COUNT(&set) == 0) return;
  if (raw::call(SYS_sched_setaffinity, 0, sizeof set, &set) == 0) avoided_ = cpu;
}

}  // namespace tidepool::os
