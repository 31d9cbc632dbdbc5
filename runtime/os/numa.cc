// SPDX-License-Identifier: Apache-2.0
// Nodes from sysfs; mbind(2) and move_pages(2), the latter only to ask where pages are.
#include "runtime/os/numa.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "runtime/base/format.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::os {
namespace {

constexpr int kPreferred = 1;          // MPOL_PREFERRED
constexpr uint32_t kMaskBits = 1024;   // as many as the largest kernel has
constexpr size_t kAskedAtOnce = 512;   // pages a call of move_pages: a granule
constexpr uint32_t kMostNodes = 1024;  // highest number looked for, plus one

/// Reads a file of the node, null-terminated; empty if it cannot be.
void readNodeFile(const char* folder, uint32_t node, const char* name, std::span<char> out) {
  char path[256];
  formatText(path, sizeof path, "%s/node%u/%s", folder, node, name);
  out[0] = '\0';
  UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return;
  const ssize_t got = ::read(fd.get(), out.data(), out.size() - 1);
  out[got > 0 ? static_cast<size_t>(got) : 0] = '\0';
}

/// "Node 1 MemFree:   123 kB" by its name.
Bytes memoryLine(const char* text, const char* name) {
  const char* line = strstr(text, name);
  return line == nullptr ? Bytes() : Bytes(strtoull(line + strlen(name), nullptr, 10) * kKiB);
}

/// The smallest distance to a node with processors. The file names the online nodes' distances in
/// order: those of `online`.
uint32_t distanceFrom(const char* text, std::span<const uint32_t> online,
                      std::span<const bool> cpus) {
  uint32_t nearest = 0;
  char* cursor = const_cast<char*>(text);
  for (const uint32_t node : online) {
    char* end = nullptr;
    const auto distance = static_cast<uint32_t>(strtoul(cursor, &end, 10));
    if (end == cursor) break;
    cursor = end;
    if (cpus[node] && (nearest == 0 || distance < nearest)) nearest = distance;
  }
  return nearest;
}

}  // namespace

const NumaNode* NumaNodes::find(uint32_t number) const {
  for (size_t i = 0; i < count; ++i) {
    if (nodes[i].number == number) return &nodes[i];
  }
  return nullptr;
}

const NumaNode* NumaNodes::nearestFar() const {
  const NumaNode* best = nullptr;
  for (size_t i = 0; i < count; ++i) {
    const NumaNode& node = nodes[i];
    if (node.has_cpus) continue;
    if (best == nullptr || node.distance < best->distance ||
        (node.distance == best->distance && node.total > best->total)) {
      best = &node;
    }
  }
  return best;
}

NumaNodes readNumaNodes(const char* folder) {
  NumaNodes found;
  char text[4096];
  std::array<uint32_t, NumaNodes::kMost> online{};
  std::array<bool, kMostNodes> cpus{};
  size_t online_count = 0;
  for (uint32_t node = 0; node < kMostNodes && online_count < online.size(); ++node) {
    readNodeFile(folder, node, "cpulist", text);
    char memory[4096];
    readNodeFile(folder, node, "meminfo", memory);
    if (memory[0] == '\0') continue;  // no such node
    online[online_count++] = node;
    cpus[node] = text[0] >= '0' && text[0] <= '9';
    const Bytes total = memoryLine(memory, "MemTotal:");
    if (total == Bytes()) continue;
    found.nodes[found.count++] = {node, cpus[node], total, memoryLine(memory, "MemFree:"), 0};
  }
  for (size_t i = 0; i < found.count; ++i) {
    readNodeFile(folder, found.nodes[i].number, "distance", text);
    found.nodes[i].distance = distanceFrom(text, {online.data(), online_count}, cpus);
  }
  return found;
}

Status preferNode(uintptr_t address, Bytes size, uint32_t node) {
  constexpr uint32_t kWordBits = 8 * sizeof(unsigned long);
  unsigned long mask[kMaskBits / kWordBits] = {};
  if (node >= kMaskBits) return fail(ErrorCode::kInvalidArgument, "no NUMA node %u", node);
  mask[node / kWordBits] = 1ul << (node % kWordBits);
  // The kernel reads one bit less than it is told.
  if (syscall(SYS_mbind, address, size.value(), kPreferred, mask, kMaskBits + 1, 0) != 0) {
    return failErrno(ErrorCode::kInvalidArgument, "the kernel places no memory on NUMA node %u",
                     node);
  }
  return {};
}

Result<uint64_t> pagesNotOn(uintptr_t address, Bytes size, uint32_t node) {
  void* pages[kAskedAtOnce];
  int where[kAskedAtOnce];
  uint64_t elsewhere = 0;
  for (uint64_t done = 0; done < size.value();) {
    const size_t count = std::min<size_t>(kAskedAtOnce, (size.value() - done) / kPageSize);
    for (size_t i = 0; i < count; ++i) {
      pages[i] = reinterpret_cast<void*>(address + done + i * kPageSize);
    }
    if (syscall(SYS_move_pages, 0, count, pages, nullptr, where, 0) != 0) {
      return failErrno(ErrorCode::kUnsupported, "the kernel does not say where pages are");
    }
    for (size_t i = 0; i < count; ++i) elsewhere += where[i] != static_cast<int>(node) ? 1 : 0;
    done += count * kPageSize;
  }
  return elsewhere;
}

}  // namespace tidepool::os
