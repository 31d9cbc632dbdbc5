// SPDX-License-Identifier: Apache-2.0
// What the kernel says of NUMA nodes (/sys/devices/system/node), and the system calls that place
// memory on one: plain calls, so that nothing needs libnuma. Thread-safe, no allocation.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/base/result.h"
#include "runtime/base/text_buffer.h"
#include "runtime/base/units.h"
#include "runtime/os/numa_nodes.h"

namespace tidepool::os {

/// The nodes that have memory, as the kernel has them now. None if it does not say.
NumaNodes readNumaNodes(const char* folder = "/sys/devices/system/node");

/// What the kernel itself does with memory of several nodes.
struct KernelTiering {
  /// Bits of numa_balancing: 1 moves memory to who uses it, 2 promotes hot pages of far nodes.
  int64_t balancing = 0;
  bool demotes = false;  // reclaim moves pages of local nodes to far ones
  bool moves() const { return demotes || (balancing & 2) != 0; }
  /// The commands that stop it; nothing if it does not move memory.
  void appendMend(TextBuffer& out) const;
};
KernelTiering readKernelTiering(const char* balancing = "/proc/sys/kernel/numa_balancing",
                                const char* demotion = "/sys/kernel/mm/numa/demotion_enabled");

/// Memory of the range that is not there yet comes from the node while it has any, then from
/// others. For a shared mapping of a memory file this holds for all mappings of it. Errors:
/// kInvalidArgument when the kernel knows no such node.
Status preferNode(uintptr_t address, Bytes size, uint32_t node);
/// The node of each page, or a negative errno (ENOENT: absent). Errors: kUnsupported.
Status nodesOf(std::span<void* const> pages, std::span<int> nodes);
/// Moves present pages that no other process maps to the node, in one batch. `nodes` then says, of
/// each page, where it is, as nodesOf() does: the caller checks. Errors: kUnsupported.
Status movePages(std::span<void* const> pages, uint32_t node, std::span<int> nodes);
/// The same for all pages of a range, a granule a call. Returns how many are not on the node then,
/// absent ones included.
Result<uint64_t> movePagesTo(uintptr_t address, Bytes size, uint32_t node);
/// The node of the processor that this thread runs on.
uint32_t currentNode();
/// How many present pages of the range lie on other nodes than this one, and pages that are absent.
/// Errors: kUnsupported.
Result<uint64_t> pagesNotOn(uintptr_t address, Bytes size, uint32_t node);

}  // namespace tidepool::os
