// SPDX-License-Identifier: Apache-2.0
// The seam to perf_event_open(2), for events that sample accesses to memory with their data
// addresses, and for the registers of threads at their page faults. Tests put a ring of their own
// in the kernel's place. A ring belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/base/fault_sample.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool {

/// What perf_event_attr needs to know of such an event.
struct MemoryEvent {
  const char* name = "";  // "pebs" or "ibs"
  uint32_t type = 0;
  uint64_t config[3] = {};  // config, config1, config2
  uint8_t precise = 0;
};

inline constexpr const char* kEventSources = "/sys/bus/event_source/devices";

/// Looks under `sources` for Intel's mem-loads or AMD's ibs_op. Errors: kNotFound when the machine
/// has neither, kUnsupported when it has one that cannot be used as its files describe it.
Result<MemoryEvent> findMemoryEvent(const char* sources);

/// A ring buffer that the kernel fills with records, and the event that does it.
class PerfRing {
 public:
  virtual ~PerfRing() = default;
  /// The data area: a power of two of bytes.
  virtual std::span<const std::byte> data() const = 0;
  /// Where the kernel has written to; what lies before may be read (acquire).
  virtual uint64_t head() const = 0;
  /// What lies before `tail` may be overwritten (release).
  virtual void release(uint64_t tail) = 0;
  virtual void start() = 0;
  virtual void stop() = 0;
};

/// The page faults of one thread outside the kernel, from the moment it is opened until it is
/// destroyed. The kernel writes each before it reports the fault to userfaultfd, over the oldest:
/// so the latest of a thread that waits for a page is the fault it waits for, unless the kernel
/// touched the page on its behalf. A child of fork() has no part in it.
class FaultRing {
 public:
  virtual ~FaultRing() = default;
  /// False if there is none yet, or of a program that is not 64-bit.
  virtual bool latest(FaultSample& out) const = 0;
};

class PerfPort {
 public:
  virtual ~PerfPort() = default;
  /// `thread` is one of this process. Errors: kNotFound when there is no such thread, kPermission,
  /// kUnsupported: on this kind of processor.
  virtual Result<std::unique_ptr<FaultRing>> openFaults(int thread) = 0;
  /// Samples the calling thread, and the threads it will start, while they run on `cpu`. Not
  /// started yet. Errors: kNotFound when there is no such processor, kPermission, kUnsupported.
  virtual Result<std::unique_ptr<PerfRing>> open(const MemoryEvent& event, uint64_t sample_type,
                                                 int cpu) = 0;
};

std::unique_ptr<PerfPort> openKernelPerfPort();

}  // namespace tidepool
