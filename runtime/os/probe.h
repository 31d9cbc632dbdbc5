// SPDX-License-Identifier: Apache-2.0
// Questions to the kernel about what this machine and this user can do, each answered without
// changing anything. No heap; thread-safe. `tidepool doctor`, `tidepool run` and the shim ask.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool {

/// How much of userfaultfd this process may use.
enum class UffdAccess : uint8_t {
  kNone,      // the kernel refuses, or has none
  kUserOnly,  // faults inside system calls are not reported: not enough for Tidepool
  kDevice,    // everything, through /dev/userfaultfd
  kSyscall,   // everything, through the system call
};

struct UffdProbe {
  UffdAccess access = UffdAccess::kNone;
  uint64_t features = 0;  // UFFD_FEATURE_* bits that the kernel offers; 0 with kNone
  int os_error = 0;       // why there is no better access; 0 with kSyscall
  bool full() const { return access == UffdAccess::kDevice || access == UffdAccess::kSyscall; }
};

UffdProbe probeUserfaultfd();

/// A feature that Tidepool uses, and what it loses without it (null: it cannot run).
struct UffdFeature {
  uint64_t bit;
  const char* name;
  const char* without;
};
std::span<const UffdFeature> uffdFeatures();

/// True if /proc/self/pagemap answers PAGEMAP_SCAN (kernel 6.7).
bool probePagemapScan();

struct KernelVersion {
  unsigned major = 0;
  unsigned minor = 0;
  auto operator<=>(const KernelVersion&) const = default;
};
KernelVersion kernelVersion();

/// The first line of a small file of /proc or /sys in `buffer`, without its newline; empty if it
/// cannot be read.
std::string_view readSysText(const char* path, std::span<char> buffer);
/// A whole number in such a file. Errors: kNotFound, kCorrupt.
Result<int64_t> readSysNumber(const char* path);
/// One more than the highest number of a processor that the machine has. sysconf() would allocate.
uint32_t presentProcessors();
/// A line of /proc/meminfo by its name, "MemAvailable"; zero if absent.
Bytes readMeminfo(std::string_view name);

/// Why userfaultfd cannot be used in full, and the command that mends it, as an Error (kPermission
/// or kUnsupported); success if it can.
Status requireUserfaultfd(const UffdProbe& probe);

}  // namespace tidepool
