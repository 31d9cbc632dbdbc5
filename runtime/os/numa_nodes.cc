// SPDX-License-Identifier: Apache-2.0
// Ranking of NUMA nodes. See numa_nodes.h.
#include "runtime/os/numa_nodes.h"

#include <algorithm>

namespace tidepool::os {
namespace {

constexpr double kLocalDistance = 10;  // by definition (ACPI, SLIT)

double ratio(uint64_t of, uint64_t to) { return static_cast<double>(of) / static_cast<double>(to); }

}  // namespace

const char* nodeRoleName(NodeRole role) {
  switch (role) {
    case NodeRole::kLocal:
      return "local";
    case NodeRole::kFast:
      return "fast";
    case NodeRole::kFar:
      return "far";
  }
  return "?";
}

const NumaNode* NumaNodes::find(uint32_t number) const {
  for (const NumaNode& node : all()) {
    if (node.number == number) return &node;
  }
  return nullptr;
}

const NumaNode* NumaNodes::local() const {
  const NumaNode* best = nullptr;
  for (const NumaNode& node : all()) {
    if (!node.has_cpus) continue;
    const uint64_t latency = node.speed.read_latency.value();
    if (best == nullptr || (latency != 0 && (best->speed.read_latency.value() == 0 ||
                                             latency < best->speed.read_latency.value()))) {
      best = &node;
    }
  }
  return best;
}

double NumaNodes::remotenessOf(const NumaNode& node) const {
  const NumaNode* const reference = local();
  const MemorySpeed& own = node.speed;
  const MemorySpeed base = reference != nullptr ? reference->speed : MemorySpeed();
  double remoteness = 1;
  if (own.read_latency.value() != 0 && base.read_latency.value() != 0) {
    remoteness = ratio(own.read_latency.value(), base.read_latency.value());
  } else if (node.distance != 0) {
    remoteness = node.distance / kLocalDistance;
  } else if (!node.has_cpus) {
    remoteness = 2;  // nothing is known but that nobody lives there: the kernel's usual distance
  }
  if (own.read_bandwidth.value() != 0 && base.read_bandwidth.value() != 0) {
    remoteness *= ratio(base.read_bandwidth.value(), own.read_bandwidth.value());
  }
  return remoteness;
}

NodeRole NumaNodes::roleOf(const NumaNode& node) const {
  if (node.has_cpus) return NodeRole::kLocal;
  return remotenessOf(node) < 1 ? NodeRole::kFast : NodeRole::kFar;
}

std::span<const NumaNode*> NumaNodes::ranked(std::span<const NumaNode*, kMost> out) const {
  for (size_t i = 0; i < count; ++i) out[i] = &nodes[i];
  const auto by_rank = [this](const NumaNode* one, const NumaNode* other) {
    const double one_is = remotenessOf(*one), other_is = remotenessOf(*other);
    if (one_is != other_is) return one_is < other_is;
    if (one->total != other->total) return one->total > other->total;
    return one->number < other->number;
  };
  std::sort(out.begin(), out.begin() + count, by_rank);
  return out.first(count);
}

const NumaNode* NumaNodes::nearestFar() const {
  std::array<const NumaNode*, kMost> order;
  for (const NumaNode* node : ranked(order)) {
    if (roleOf(*node) == NodeRole::kFar) return node;
  }
  return nullptr;
}

Nanoseconds NumaNodes::extraLatencyOf(const NumaNode& node) const {
  const NumaNode* const reference = local();
  if (reference == nullptr) return {};
  const Nanoseconds base = reference->speed.read_latency;
  const Nanoseconds own = node.speed.read_latency;
  return base.value() != 0 && own > base ? own - base : Nanoseconds();
}

Bytes NumaNodes::farMemory() const {
  Bytes sum;
  for (const NumaNode& node : all()) {
    if (roleOf(node) == NodeRole::kFar) sum += node.total;
  }
  return sum;
}

}  // namespace tidepool::os
