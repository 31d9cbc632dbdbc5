// SPDX-License-Identifier: Apache-2.0
// Nodes from sysfs; mbind(2) and move_pages(2).
#include "runtime/os/numa.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <span>

#include "runtime/base/format.h"
#include "runtime/base/numbers.h"
#include "runtime/base/raw_calls.h"
#include "runtime/base/unique_fd.h"
#include "runtime/os/probe.h"

namespace tidepool::os {
namespace {

constexpr int kPreferred = 1;          // MPOL_PREFERRED
constexpr int kMove = 1 << 1;          // MPOL_MF_MOVE
constexpr uint32_t kMaskBits = 1024;   // as many as the largest kernel has
constexpr size_t kAskedAtOnce = 512;   // pages a call of move_pages: a granule
constexpr uint32_t kMostNodes = 1024;  // as many as the largest kernel has

/// Reads a file of the folder, null-terminated; empty if it cannot be.
void readFolderFile(const char* folder, const char* name, std::span<char> out) {
  char path[256];
  formatText(path, sizeof path, "%s/%s", folder, name);
  out[0] = '\0';
  UniqueFd fd(raw::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return;
  const ssize_t got = raw::read(fd.get(), out.data(), out.size() - 1);
  out[got > 0 ? static_cast<size_t>(got) : 0] = '\0';
}

void readNodeFile(const char* folder, uint32_t node, const char* name, std::span<char> out) {
  char path[96];
  formatText(path, sizeof path, "node%u/%s", node, name);
  readFolderFile(folder, path, out);
}

/// Calls `act(number)` for the numbers below kMostNodes of a list such as "0-3,8".
template <typename Act>
void forNumbers(const char* list, Act act) {
  while (*list >= '0' && *list <= '9') {
    const char* end = nullptr;
    const uint64_t first = numberAt(list, &end);
    const uint64_t last = *end == '-' ? numberAt(end + 1, &end) : first;
    for (uint64_t n = first; n <= last && n < kMostNodes; ++n) act(static_cast<uint32_t>(n));
    if (*end != ',') return;
    list = end + 1;
  }
}

/// A number of one of the node's files; 0 if there is none.
uint64_t nodeNumber(const char* folder, uint32_t node, const char* name) {
  char text[32];
  readNodeFile(folder, node, name, text);
  return numberAt(text);
}

/// As seen by the nearest processors (access class 1), or by whatever is nearest (0) on kernels
/// that do not tell these apart. The kernel gives nanoseconds and megabytes a second.
MemorySpeed speedOf(const char* folder, uint32_t node) {
  constexpr uint64_t kMegabyte = 1'000'000;
  MemorySpeed speed;
  for (const int access : {1, 0}) {
    const auto read = [&](const char* name) {
      char path[64];
      formatText(path, sizeof path, "access%d/initiators/%s", access, name);
      return nodeNumber(folder, node, path);
    };
    speed = {Nanoseconds(read("read_latency")), Nanoseconds(read("write_latency")),
             Bytes(read("read_bandwidth") * kMegabyte), Bytes(read("write_bandwidth") * kMegabyte)};
    if (speed.read_latency.value() != 0 || speed.read_bandwidth.value() != 0) return speed;
  }
  return speed;
}

/// "Node 1 MemFree:   123 kB" by its name.
Bytes memoryLine(const char* text, const char* name) {
  const char* line = strstr(text, name);
  return line == nullptr ? Bytes() : Bytes(numberAt(line + strlen(name)) * kKiB);
}

/// The smallest distance to a node with processors. The file names the online nodes' distances in
/// order: those of `online`.
uint32_t distanceFrom(const char* text, std::span<const uint32_t> online,
                      std::span<const bool> cpus) {
  uint32_t nearest = 0;
  const char* cursor = text;
  for (const uint32_t node : online) {
    const char* end = nullptr;
    const auto distance = static_cast<uint32_t>(numberAt(cursor, &end));
    if (end == cursor) break;
    cursor = end;
    if (cpus[node] && (nearest == 0 || distance < nearest)) nearest = distance;
  }
  return nearest;
}

}  // namespace

NumaNodes readNumaNodes(const char* folder) {
  NumaNodes found;
  std::array<uint32_t, NumaNodes::kMost> online{};
  std::array<bool, kMostNodes> cpus{};
  size_t online_count = 0;
  char list[4096];
  readFolderFile(folder, "online", list);
  forNumbers(list, [&](uint32_t node) {
    if (online_count == online.size()) return;
    char text[4096];
    readNodeFile(folder, node, "meminfo", text);
    if (text[0] == '\0') return;  // gone meanwhile
    online[online_count++] = node;
    const Bytes total = memoryLine(text, "MemTotal:");
    const Bytes free = memoryLine(text, "MemFree:");
    readNodeFile(folder, node, "cpulist", text);
    cpus[node] = text[0] >= '0' && text[0] <= '9';
    if (total == Bytes()) return;
    found.nodes[found.count++] = {node, cpus[node], total, free, 0, speedOf(folder, node)};
  });
  char text[4096];
  for (size_t i = 0; i < found.count; ++i) {
    readNodeFile(folder, found.nodes[i].number, "distance", text);
    found.nodes[i].distance = distanceFrom(text, {online.data(), online_count}, cpus);
  }
  return found;
}

KernelTiering readKernelTiering(const char* balancing, const char* demotion) {
  KernelTiering found;
  found.balancing = readSysNumber(balancing).value_or(0);
  char text[16];
  const std::string_view demotes = readSysText(demotion, text);
  found.demotes = demotes == "true" || demotes == "1";
  return found;
}

void KernelTiering::appendMend(TextBuffer& out) const {
  if (demotes) out.append("echo false | sudo tee /sys/kernel/mm/numa/demotion_enabled");
  if ((balancing & 2) == 0) return;
  if (demotes) out.append("; ");
  out.append("sudo sysctl -w kernel.numa_balancing=0");
}

Status preferNode(uintptr_t address, Bytes size, uint32_t node) {
  constexpr uint32_t kWordBits = 8 * sizeof(unsigned long);
  unsigned long mask[kMaskBits / kWordBits] = {};
  if (node >= kMaskBits) return fail(ErrorCode::kInvalidArgument, "no NUMA node %u", node);
  mask[node / kWordBits] = 1ul << (node % kWordBits);
  // The kernel reads one bit less than it is told.
  if (raw::call(SYS_mbind, address, size.value(), kPreferred, mask, kMaskBits + 1, 0) != 0) {
    return failErrno(ErrorCode::kInvalidArgument, "the kernel places no memory on NUMA node %u",
                     node);
  }
  return {};
}

Status nodesOf(std::span<void* const> pages, std::span<int> nodes) {
  if (pages.empty()) return {};
  if (raw::call(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0) {
    return failErrno(ErrorCode::kUnsupported, "the kernel does not say where pages are");
  }
  return {};
}

Status movePages(std::span<void* const> pages, uint32_t node, std::span<int> nodes) {
  if (pages.empty()) return {};
  // It takes the wanted nodes, and gives back a number above 0 when it gave up on some, which
  // leaves the outcome of the others unsaid: so they are asked for.
  int wanted[kAskedAtOnce];
  for (size_t done = 0; done < pages.size(); done += kAskedAtOnce) {
    const size_t count = std::min(kAskedAtOnce, pages.size() - done);
    int outcome[kAskedAtOnce];
    std::fill(wanted, wanted + count, static_cast<int>(node));
    if (raw::call(SYS_move_pages, 0, count, pages.data() + done, wanted, outcome, kMove) < 0) {
      return failErrno(ErrorCode::kUnsupported, "the kernel moves no pages to NUMA node %u", node);
    }
  }
  return nodesOf(pages, nodes);
}

namespace {

/// Calls `act(pages)` for the addresses of the range, a granule at a time, until it fails.
template <typename Act>
Status forBatches(uintptr_t address, Bytes size, Act act) {
  void* pages[kAskedAtOnce];
  for (uint64_t done = 0; done < size.value();) {
    const size_t count = std::min<size_t>(kAskedAtOnce, (size.value() - done) / kPageSize);
    for (size_t i = 0; i < count; ++i) {
      pages[i] = reinterpret_cast<void*>(address + done + i * kPageSize);
    }
    TP_TRY(act(std::span<void* const>(pages, count)));
    done += count * kPageSize;
  }
  return {};
}

}  // namespace

Result<uint64_t> movePagesTo(uintptr_t address, Bytes size, uint32_t node) {
  uint64_t elsewhere = 0;
  const Status done = forBatches(address, size, [&](std::span<void* const> pages) -> Status {
    int nodes[kAskedAtOnce];
    TP_TRY(movePages(pages, node, {nodes, pages.size()}));
    elsewhere += pages.size() - static_cast<uint64_t>(std::count(nodes, nodes + pages.size(),
                                                                 static_cast<int>(node)));
    return {};
  });
  if (!done) return tl::unexpected(done.error());
  return elsewhere;
}

uint32_t currentNode() {
  unsigned processor = 0, node = 0;
  raw::call(SYS_getcpu, &processor, &node, nullptr);
  return node;
}

Result<uint64_t> pagesNotOn(uintptr_t address, Bytes size, uint32_t node) {
  uint64_t elsewhere = 0;
  const Status done = forBatches(address, size, [&](std::span<void* const> pages) -> Status {
    int nodes[kAskedAtOnce];
    TP_TRY(nodesOf(pages, {nodes, pages.size()}));
    elsewhere += pages.size() - static_cast<uint64_t>(std::count(nodes, nodes + pages.size(),
                                                                 static_cast<int>(node)));
    return {};
  });
  if (!done) return tl::unexpected(done.error());
  return elsewhere;
}

}  // namespace tidepool::os
