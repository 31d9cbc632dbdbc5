// SPDX-License-Identifier: Apache-2.0
// The seam to the rest of the kernel, beside FaultPort: what the parts of runtime/migrate ask of it
// about memory of the program, and how they sleep. Tests hand them one that fails, or that acts in
// between as a thread of the program might. Every call is safe from any thread and allocates
// nothing. Addresses and lengths are in bytes, page-aligned.
#pragma once

#include <poll.h>

#include <cstddef>
#include <optional>
#include <span>

#include "runtime/os/memory.h"

namespace tidepool {

/// What os::scanWritten() and os::scanPresent() look for.
enum class Scan : uint8_t { kWritten, kPresent };

class Kernel {
 public:
  // As the functions of these names in runtime/os/memory.h.
  virtual Status mapFresh(uintptr_t address, Bytes size) = 0;
  virtual Status mapNothing(uintptr_t address, Bytes size) = 0;
  virtual Status mapUnused(uintptr_t address, Bytes size) = 0;
  virtual Status moveMapping(uintptr_t from, uintptr_t to, Bytes size) = 0;
  virtual void zapShared(uintptr_t address, Bytes size) = 0;
  virtual Status protect(uintptr_t address, Bytes size, int protection) = 0;
  virtual Status discard(uintptr_t address, Bytes size) = 0;
  virtual Bytes discardUnlocked(uintptr_t address, Bytes size) = 0;
  virtual bool unshare(uintptr_t address, Bytes size) = 0;
  virtual void keepFromChildren(uintptr_t address, Bytes size) = 0;
  virtual Status keepFromDumps(uintptr_t address, Bytes size) = 0;
  virtual Status dumpAgain(uintptr_t address, Bytes size) = 0;
  virtual void leaveOutOfDumps(uintptr_t address, Bytes size) = 0;
  virtual void includeInDumps(uintptr_t address, Bytes size) = 0;
  virtual Bytes anonymousMemory(int statm) = 0;
  virtual os::LeftBehind leftBehind(int stat) = 0;
  virtual uint32_t ownShareOfAnonymous() = 0;
  /// As in runtime/os/pin_check.h.
  virtual bool mayPinPages() = 0;
  // As in runtime/os/numa.h.
  virtual Status nodesOf(std::span<void* const> pages, std::span<int> nodes) = 0;
  virtual Status movePages(std::span<void* const> pages, uint32_t node, std::span<int> nodes) = 0;

  virtual Result<size_t> scan(Scan what, int pagemap, uintptr_t address, Bytes size,
                              std::span<os::PageRun> out, uintptr_t* walked) = 0;
  /// Copies pages of the program's, up to the first that is absent or may not be read, where a load
  /// would wait for the fault service. Returns how many.
  PageCount readPages(std::byte* to, uintptr_t from, PageCount pages) {
    const os::PageRun run{from, from + toBytes(pages).value()};
    return readPages(to, {&run, 1});
  }
  /// The same of several runs, one behind the other; at most kMostReadRuns.
  virtual PageCount readPages(std::byte* to, std::span<const os::PageRun> runs) = 0;
  static constexpr size_t kMostReadRuns = 128;
  /// ppoll(2): returns when a descriptor is ready, or after `timeout`, if there is one.
  virtual void wait(std::span<pollfd> waits, std::optional<Nanoseconds> timeout) = 0;

 protected:
  ~Kernel() = default;  // nobody owns one by this class
};

/// The kernel that this process runs on.
Kernel& realKernel();

}  // namespace tidepool
