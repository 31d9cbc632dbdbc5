// SPDX-License-Identifier: Apache-2.0
// NUMA nodes that have memory, and how they rank as tiers. Pure values, filled in from the
// kernel's files (numa.h), or by hwloc in the command. Single-threaded.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "runtime/base/units.h"

namespace tidepool::os {

/// What the firmware says of memory as its nearest processors see it (ACPI's HMAT, or the device
/// itself). 0 where nothing is said. Bandwidths are bytes a second.
struct MemorySpeed {
  Nanoseconds read_latency;
  Nanoseconds write_latency;
  Bytes read_bandwidth;
  Bytes write_bandwidth;
};

struct NumaNode {
  uint32_t number = 0;
  bool has_cpus = false;
  Bytes total;
  Bytes free;
  /// From the nearest node that has processors, in the firmware's units (10: local); 0 if the
  /// kernel does not say.
  uint32_t distance = 0;
  MemorySpeed speed;
};

enum class NodeRole : uint8_t {
  kLocal,  // has processors
  kFast,   // has none, and is better than local memory: high-bandwidth memory in flat mode
  kFar,    // has none: CXL memory in system-RAM mode, persistent memory
};
/// "local", "fast", "far".
const char* nodeRoleName(NodeRole role);

/// The nodes that have memory, by number.
struct NumaNodes {
  static constexpr size_t kMost = 64;  // nodes with memory that are looked at
  std::array<NumaNode, kMost> nodes;
  size_t count = 0;

  std::span<const NumaNode> all() const { return {nodes.data(), count}; }
  const NumaNode* find(uint32_t number) const;
  NodeRole roleOf(const NumaNode& node) const;
  /// How much worse than local memory a node's is; local memory is about 1. Latency counts by its
  /// ratio to local memory's, or distance where the firmware gives no latency, and bandwidth, where
  /// it is given for both, by the inverse of its ratio: as the kernel's own memory tiers
  /// (mt_perf_to_adistance of mm/memory-tiers.c) weigh them.
  double remotenessOf(const NumaNode& node) const;
  /// Fills `out` with all nodes, best first: by remoteness, the larger first where that is equal.
  /// Returns those filled in.
  std::span<const NumaNode*> ranked(std::span<const NumaNode*, kMost> out) const;
  /// The best node of the kind that CXL memory is. Null if there is none.
  const NumaNode* nearestFar() const;
  /// Expected latency of a load beyond local memory's; 0 if the firmware does not say.
  Nanoseconds extraLatencyOf(const NumaNode& node) const;
  /// All memory of far nodes.
  Bytes farMemory() const;

 private:
  /// The fastest node that has processors: what the others are compared to. Null if there is none.
  const NumaNode* local() const;
};

}  // namespace tidepool::os
