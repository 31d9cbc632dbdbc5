// SPDX-License-Identifier: Apache-2.0
// The machine as hwloc sees it, as far as tiers of memory are concerned: nodes with memory, who is
// near them, distances, and what the firmware says of latency and bandwidth. HWLOC_XMLFILE and
// HWLOC_SYNTHETIC stand for another machine, as in hwloc's own tools. Plain values; not for
// threads.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/os/numa_nodes.h"

namespace tidepool::cli {

/// What stands beside the NumaNode of the same index.
struct NodePlace {
  unsigned processors = 0;          // hardware threads whose nearest memory this is
  std::string kind;                 // "HBM" and the like, where hwloc knows
  std::vector<unsigned> packages;   // sockets that the node is attached to
  std::vector<uint32_t> distances;  // to the nodes with memory, in their order; empty if unknown
};

struct Topology {
  std::string source;  // what it was read with
  bool this_machine = true;
  unsigned packages = 0;
  unsigned processors = 0;  // hardware threads
  os::NumaNodes nodes;
  std::vector<NodePlace> places;
};

/// Free memory is known of this machine alone. Errors: kNotFound when hwloc cannot read it.
Result<Topology> readTopology();

/// A table, best node first; several lines.
std::string topologyText(const Topology& topology);
/// A JSON object: `source`, `this_machine`, `packages`, `processors`, `nodes`, best first.
std::string topologyJson(const Topology& topology);

}  // namespace tidepool::cli
