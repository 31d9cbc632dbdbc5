// SPDX-License-Identifier: Apache-2.0
// From hwloc's tree to nodes with memory. See topology.h.
#include "shim/cli/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>

#include "runtime/os/numa.h"

namespace tidepool::cli {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Tree = std::unique_ptr<hwloc_topology, Destroy>;

std::vector<hwloc_obj_t> memoryNodes(hwloc_topology_t tree) {
  std::vector<hwloc_obj_t> nodes;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(tree, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    if (node->attr->numanode.local_memory != 0) nodes.push_back(node);
  }
  std::sort(nodes.begin(), nodes.end(),
            [](hwloc_obj_t a, hwloc_obj_t b) { return a->os_index < b->os_index; });
  nodes.resize(std::min(nodes.size(), os::NumaNodes::kMost));
  return nodes;
}

/// Processors that each node is the home of. hwloc attaches a node without processors to those that
/// are nearest, so that several nodes may claim a processor: its home is the one that the fewest
/// share, and of these the first: firmware numbers ordinary memory first.
std::map<hwloc_obj_t, unsigned> processorsOf(hwloc_topology_t tree,
                                             const std::vector<hwloc_obj_t>& nodes) {
  std::map<hwloc_obj_t, unsigned> count;
  for (hwloc_obj_t processor = nullptr;
       (processor = hwloc_get_next_obj_by_type(tree, HWLOC_OBJ_PU, processor)) != nullptr;) {
    hwloc_obj_t home = nullptr;
    for (hwloc_obj_t node : nodes) {
      if (!hwloc_bitmap_isset(node->cpuset, processor->os_index)) continue;
      if (home == nullptr ||
          hwloc_bitmap_weight(node->cpuset) < hwloc_bitmap_weight(home->cpuset)) {
        home = node;
      }
    }
    if (home != nullptr) ++count[home];
  }
  return count;
}

/// The best value of an attribute that any processor sees; 0 if none is given.
uint64_t bestValue(hwloc_topology_t tree, hwloc_obj_t node,
                   std::initializer_list<hwloc_memattr_id_e> attributes) {
  for (const hwloc_memattr_id_e attribute : attributes) {
    hwloc_location initiator;
    hwloc_uint64_t value = 0;
    const auto id = static_cast<hwloc_memattr_id_t>(attribute);
    if (hwloc_memattr_get_best_initiator(tree, id, node, 0, &initiator, &value) == 0) return value;
  }
  return 0;
}

os::MemorySpeed speedOf(hwloc_topology_t tree, hwloc_obj_t node) {
  const auto value = [&](hwloc_memattr_id_e exact, hwloc_memattr_id_e general) {
    return bestValue(tree, node, {exact, general});
  };
  using enum hwloc_memattr_id_e;
  return {Nanoseconds(value(HWLOC_MEMATTR_ID_READ_LATENCY, HWLOC_MEMATTR_ID_LATENCY)),
          Nanoseconds(value(HWLOC_MEMATTR_ID_WRITE_LATENCY, HWLOC_MEMATTR_ID_LATENCY)),
          Bytes(value(HWLOC_MEMATTR_ID_READ_BANDWIDTH, HWLOC_MEMATTR_ID_BANDWIDTH) * kMiB),
          Bytes(value(HWLOC_MEMATTR_ID_WRITE_BANDWIDTH, HWLOC_MEMATTR_ID_BANDWIDTH) * kMiB)};
}

/// Rows of the distance matrix, as far as it covers the nodes.
void readDistances(hwloc_topology_t tree, const std::vector<hwloc_obj_t>& nodes,
                   std::vector<NodePlace>& places) {
  hwloc_distances_s* matrix = nullptr;
  unsigned count = 1;
  if (hwloc_distances_get_by_type(tree, HWLOC_OBJ_NUMANODE, &count, &matrix,
                                  HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) != 0 ||
      count == 0) {
    return;
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const int row = hwloc_distances_obj_index(matrix, nodes[i]);
    for (hwloc_obj_t other : nodes) {
      const int column = hwloc_distances_obj_index(matrix, other);
      if (row < 0 || column < 0) continue;
      const auto at = static_cast<unsigned>(row) * matrix->nbobjs + static_cast<unsigned>(column);
      places[i].distances.push_back(static_cast<uint32_t>(matrix->values[at]));
    }
    if (places[i].distances.size() != nodes.size()) places[i].distances.clear();
  }
  hwloc_distances_release(tree, matrix);
}

/// To the nearest node with processors, as the kernel's files have it.
uint32_t nearest(const Topology& topology, size_t from) {
  uint32_t least = 0;
  for (size_t i = 0; i < topology.places[from].distances.size(); ++i) {
    const uint32_t distance = topology.places[i].distances[from];
    if (topology.nodes.nodes[i].has_cpus && (least == 0 || distance < least)) least = distance;
  }
  return least;
}

std::vector<unsigned> packagesOf(hwloc_topology_t tree, hwloc_obj_t node) {
  std::vector<unsigned> packages;
  for (hwloc_obj_t package = nullptr;
       (package = hwloc_get_next_obj_by_type(tree, HWLOC_OBJ_PACKAGE, package)) != nullptr;) {
    if (hwloc_bitmap_intersects(package->cpuset, node->cpuset)) {
      packages.push_back(package->os_index);
    }
  }
  return packages;
}

Topology topologyOf(hwloc_topology_t tree) {
  Topology topology;
  topology.source = "hwloc";
  topology.this_machine = hwloc_topology_is_thissystem(tree) != 0;
  topology.packages =
      static_cast<unsigned>(std::max(0, hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_PACKAGE)));
  topology.processors =
      static_cast<unsigned>(std::max(0, hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_PU)));
  const std::vector<hwloc_obj_t> nodes = memoryNodes(tree);
  const std::map<hwloc_obj_t, unsigned> processors = processorsOf(tree, nodes);
  const os::NumaNodes now = topology.this_machine ? os::readNumaNodes() : os::NumaNodes();
  for (hwloc_obj_t node : nodes) {
    const auto own = processors.find(node);
    const unsigned count = own == processors.end() ? 0 : own->second;
    const os::NumaNode* const known = now.find(node->os_index);
    topology.nodes.nodes[topology.nodes.count++] = {node->os_index,
                                                    known != nullptr ? known->has_cpus : count > 0,
                                                    Bytes(node->attr->numanode.local_memory),
                                                    known != nullptr ? known->free : Bytes(),
                                                    0,
                                                    speedOf(tree, node)};
    const char* const kind = node->subtype != nullptr ? node->subtype : "";
    topology.places.push_back({count, kind, packagesOf(tree, node), {}});
  }
  readDistances(tree, nodes, topology.places);
  for (size_t i = 0; i < topology.nodes.count; ++i) {
    topology.nodes.nodes[i].distance = nearest(topology, i);
  }
  return topology;
}

/// Whether hwloc was told to read a file and has looked at the machine instead, as it does with its
/// plugins installed when the file is none of its own.
bool ignoredFile(hwloc_topology_t tree) {
  return getenv("HWLOC_XMLFILE") != nullptr && getenv("HWLOC_THISSYSTEM") == nullptr &&
         hwloc_topology_is_thissystem(tree) != 0;
}

}  // namespace

Result<Topology> readTopology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return fail(ErrorCode::kNoMemory, "hwloc cannot start");
  const Tree tree(raw);
  // A container may have a few of the processors; memory is the machine's all the same.
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (hwloc_topology_load(raw) != 0) {
    return failErrno(ErrorCode::kNotFound, "hwloc cannot read the machine's topology");
  }
  if (ignoredFile(raw)) {
    return fail(ErrorCode::kNotFound, "hwloc cannot read the file that HWLOC_XMLFILE names");
  }
  return topologyOf(raw);
}

}  // namespace tidepool::cli
