// SPDX-License-Identifier: Apache-2.0
// What the kernel says of NUMA nodes (/sys/devices/system/node), and the system calls that place
// memory on one: plain calls, so that nothing needs libnuma. Thread-safe, no allocation. Sizes are
// bytes; distances are the firmware's (10: local).
#pragma once

#include <array>
#include <cstdint>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::os {

struct NumaNode {
  uint32_t number = 0;
  bool has_cpus = false;
  Bytes total;
  Bytes free;
  /// From the nearest node that has processors; 0 if the kernel does not say.
  uint32_t distance = 0;
};

/// The nodes that have memory, by number.
struct NumaNodes {
  static constexpr size_t kMost = 64;  // nodes with memory that are looked at
  std::array<NumaNode, kMost> nodes;
  size_t count = 0;
  const NumaNode* find(uint32_t number) const;
  /// The nearest node without processors, as CXL memory is: the largest of those that are equally
  /// near. Null if there is none.
  const NumaNode* nearestFar() const;
};
NumaNodes readNumaNodes(const char* folder = "/sys/devices/system/node");

/// Memory of the range that is not there yet comes from the node while it has any, then from
/// others. For a shared mapping of a memory file this holds for all mappings of it. Errors:
/// kInvalidArgument when the kernel knows no such node.
Status preferNode(uintptr_t address, Bytes size, uint32_t node);
/// How many present pages of the range lie on other nodes than this one, and pages that are absent.
/// Errors: kUnsupported.
Result<uint64_t> pagesNotOn(uintptr_t address, Bytes size, uint32_t node);

}  // namespace tidepool::os
