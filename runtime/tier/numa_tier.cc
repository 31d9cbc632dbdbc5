// SPDX-License-Identifier: Apache-2.0
// NumaTier: a memory file with a policy, and the look at each page.
#include "runtime/tier/numa_tier.h"

#include <algorithm>

#include "runtime/base/format.h"
#include "runtime/base/numbers.h"
#include "runtime/os/memory.h"
#include "runtime/tier/far_kind.h"

namespace tidepool {
namespace {

/// The kernel's watermarks: allocating down to nothing would send it to other nodes, or reclaiming.
Bytes usableOf(const os::NumaNode& node) {
  constexpr uint64_t kShare = 32;
  const uint64_t kept = std::max(node.total.value() / kShare, 4 * kMiB);
  return Bytes(roundDown(node.free.value() - std::min(node.free.value(), kept), kGranuleSize));
}

}  // namespace

NumaTier::NumaTier(uint32_t node, Nanoseconds extra_latency, std::unique_ptr<DirectFileTier> file)
    : node_(node), extra_latency_(extra_latency), file_(std::move(file)) {
  formatText(name_, sizeof name_, "numa:%u", node);
}

Result<std::unique_ptr<NumaTier>> NumaTier::open(uint32_t number, const os::NumaNodes& nodes) {
  const os::NumaNode* const node = nodes.find(number);
  if (node == nullptr) {
    return fail(ErrorCode::kNotFound,
                "numa:%u: this machine has no such node with memory; `tidepool doctor` lists them",
                number);
  }
  if (nodes.count < 2) {
    return fail(ErrorCode::kUnsupported,
                "numa:%u is all the memory this machine has: there is no far memory here", number);
  }
  const Bytes size = usableOf(*node);
  if (size == Bytes()) return fail(ErrorCode::kNoSpace, "numa:%u has no free memory", number);
  auto file = DirectFileTier::createEmulated(size, "tidepool-numa");
  if (!file) return tl::unexpected(file.error());
  const auto window = reinterpret_cast<uintptr_t>((*file)->frameMemory(FrameIndex(0)));
  TP_TRY(os::preferNode(window, size, number));
  const Nanoseconds stated = nodes.extraLatencyOf(*node);
  const Nanoseconds extra = stated.value() != 0 ? stated : (*file)->extraLoadLatency();
  return std::unique_ptr<NumaTier>(new NumaTier(number, extra, std::move(*file)));
}

Result<FrameRun> NumaTier::allocate(PageCount wanted) {
  const auto run = file_->allocate(wanted);
  if (!run) return fail(ErrorCode::kNoSpace, "tier %s is full", name_);
  const auto address = reinterpret_cast<uintptr_t>(frameMemory(run->first));
  const Bytes size = toBytes(run->count);
  // In the file's own window: mapping it elsewhere finds the same pages. Each is looked at: others
  // may have filled the node, and a former use may have left pages where there was room then.
  if (os::populate(address, size)) {
    auto elsewhere = os::pagesNotOn(address, size, node_);
    if (elsewhere && *elsewhere > 0) elsewhere = os::movePagesTo(address, size, node_);
    if (elsewhere && *elsewhere == 0) return *run;
  }
  file_->release(*run);
  return fail(ErrorCode::kNoSpace, "NUMA node %u has no memory left for %s", node_, name_);
}

Status NumaTier::read(FrameRun run, std::byte* memory) {
  traffic_.reads_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  return file_->read(run, memory);
}

Status NumaTier::write(FrameRun run, const std::byte* memory) {
  traffic_.writes_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  return file_->write(run, memory);
}

namespace {

Status parseNuma(const SpecText& text, FarSpec& spec) {
  constexpr uint64_t kMostNodes = 1024;  // MAX_NUMNODES of the largest kernel configuration
  const auto node = wholeNumber(text.body);
  if (!node || *node >= kMostNodes) return badSpec(text, "has a bad node number");
  spec.node = static_cast<uint32_t>(*node);
  return {};
}

Result<TierReport> checkNuma(const FarSpec& spec, const TierCheck&) {
  const os::NumaNodes nodes = os::readNumaNodes();
  const os::NumaNode* const node = nodes.find(spec.node);
  if (node == nullptr) {
    return fail(ErrorCode::kNotFound,
                "far tier numa:%u: this machine has no such node with memory: `tidepool doctor` "
                "and `numactl --hardware` list them",
                spec.node);
  }
  TierReport report;
  formatText(report.detail, sizeof report.detail, "%s free of %s, distance %u%s",
             SizeText(node->free).c_str(), SizeText(node->total).c_str(), node->distance,
             node->has_cpus ? "" : ", no processors");
  const os::KernelTiering kernel = os::readKernelTiering();
  TextBuffer warning(report.warning);
  const auto warn = [&] {
    warning.append("far tier numa:");
    warning.appendNumber(spec.node);
    warning.append(": ");
  };
  if (nodes.count < 2) {
    warn();
    warning.append("it is all the memory this machine has: there is nothing to tier");
  } else if (node->has_cpus) {
    warn();
    warning.append("it has processors: is it not local memory to programs that run there?");
  } else if (kernel.moves()) {
    warn();
    warning.append("the kernel moves pages between nodes, too (numa_balancing ");
    warning.appendNumber(static_cast<uint64_t>(kernel.balancing));
    warning.append(kernel.demotes ? ", demotion on" : ", demotion off");
    warning.append("): what counts as local may lie there; ");
    kernel.appendMend(warning);
  }
  return report;
}

}  // namespace

extern constinit const FarKind kNumaKind{
    .name = "numa",
    .form = "numa:NODE",
    .help = "A NUMA node, such as a CXL region that the kernel onlined.",
    .parse = parseNuma,
    .print =
        [](TextBuffer& out, const FarSpec& spec) {
          out.append(':');
          out.appendNumber(spec.node);
        },
    .open = [](const FarSpec& spec, const Patience&) -> Result<std::unique_ptr<Tier>> {
      return NumaTier::open(spec.node);
    },
    .check = checkNuma,
    .tables = TierKind::kDirect};

}  // namespace tidepool
