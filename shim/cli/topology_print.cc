// SPDX-License-Identifier: Apache-2.0
// Topology as a table and as JSON. See topology.h.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "runtime/base/text_buffer.h"
#include "shim/cli/processes.h"
#include "shim/cli/topology.h"

namespace tidepool::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<size_t> ranking(const Topology& topology) {
  std::array<const os::NumaNode*, os::NumaNodes::kMost> order;
  std::vector<size_t> indices;
  for (const os::NumaNode* node : topology.nodes.ranked(order)) {
    indices.push_back(static_cast<size_t>(node - topology.nodes.nodes.data()));
  }
  return indices;
}

/// "250 ns", "?" where the firmware does not say.
std::string latencyText(Nanoseconds latency) {
  return latency.value() == 0 ? "?" : fmt::format("{} ns", latency.value());
}

std::string bandwidthText(Bytes bandwidth) {
  if (bandwidth.value() == 0) return "?";
  return fmt::format("{:.1f} GB/s", static_cast<double>(bandwidth.value()) * 1e-9);
}

/// A number of the firmware's, null where it does not say.
Json stated(uint64_t value) { return value == 0 ? Json(nullptr) : Json(value); }

Json nodeJson(const Topology& topology, size_t index, size_t rank) {
  const os::NumaNode& node = topology.nodes.nodes[index];
  const NodePlace& place = topology.places[index];
  Json distances = Json::object();
  for (size_t i = 0; i < place.distances.size(); ++i) {
    distances[std::to_string(topology.nodes.nodes[i].number)] = place.distances[i];
  }
  return {{"node", node.number},
          {"rank", rank},
          {"role", os::nodeRoleName(topology.nodes.roleOf(node))},
          {"kind", place.kind},
          {"memory_bytes", node.total.value()},
          {"free_bytes", topology.this_machine ? Json(node.free.value()) : Json(nullptr)},
          {"processors", place.processors},
          {"packages", place.packages},
          {"distance", stated(node.distance)},
          {"distances", distances},
          {"remoteness", topology.nodes.remotenessOf(node)},
          {"read_latency_ns", stated(node.speed.read_latency.value())},
          {"write_latency_ns", stated(node.speed.write_latency.value())},
          {"read_bandwidth_bytes_per_second", stated(node.speed.read_bandwidth.value())},
          {"write_bandwidth_bytes_per_second", stated(node.speed.write_bandwidth.value())}};
}

}  // namespace

std::string topologyText(const Topology& topology) {
  std::string text =
      fmt::format("Memory by node, best first ({} processors in {} packages, {}{}):\n",
                  topology.processors, topology.packages, topology.source,
                  topology.this_machine ? "" : ", which was told of another machine");
  text += fmt::format("  {:<6}{:<7}{:>9}{:>9}{:>12}{:>10}{:>10}{:>13}\n", "node", "role", "memory",
                      "free", "processors", "distance", "latency", "bandwidth");
  for (const size_t index : ranking(topology)) {
    const os::NumaNode& node = topology.nodes.nodes[index];
    text += fmt::format(
        "  {:<6}{:<7}{:>9}{:>9}{:>12}{:>10}{:>10}{:>13}\n", node.number,
        os::nodeRoleName(topology.nodes.roleOf(node)), sizeText(node.total),
        topology.this_machine ? sizeText(node.free) : "?", topology.places[index].processors,
        node.distance == 0 ? "?" : std::to_string(node.distance),
        latencyText(node.speed.read_latency), bandwidthText(node.speed.read_bandwidth));
  }
  return text;
}

std::string topologyJson(const Topology& topology) {
  Json nodes = Json::array();
  for (const size_t index : ranking(topology)) {
    nodes.push_back(nodeJson(topology, index, nodes.size() + 1));
  }
  const Json json = {{"source", topology.source},
                     {"this_machine", topology.this_machine},
                     {"packages", topology.packages},
                     {"processors", topology.processors},
                     {"nodes", nodes}};
  return json.dump();
}

}  // namespace tidepool::cli
