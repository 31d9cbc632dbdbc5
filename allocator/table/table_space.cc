// SPDX-License-Identifier: Apache-2.0
// TableSpace: tiers that are opened when they are needed.
#include "allocator/table/table_space.h"

#include <sched.h>

#include <algorithm>

#include "runtime/tier/direct_file_tier.h"
#include "runtime/tier/remote_tier.h"

namespace tidepool {
namespace {

/// Processors that this process may run on.
size_t processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<size_t>(std::max(1, CPU_COUNT(&set)));
}

}  // namespace

TableSpace::~TableSpace() = default;

Result<std::unique_ptr<TableSpace>> TableSpace::create(std::span<const FarSpec> far, size_t threads,
                                                       Nanoseconds remote_timeout) {
  std::unique_ptr<TableSpace> space(
      new TableSpace(threads == 0 ? processors() : threads, remote_timeout));
  for (const FarSpec& spec : far) {
    if (spec.kind == FarKind::kFabric || spec.kind == FarKind::kNuma) {
      return fail(
          ErrorCode::kUnsupported,
          "embedding tables cannot be in %s: yet; name cxl:, dax: or remote: tiers for them",
          spec.kind == FarKind::kFabric ? "fabric" : "numa");
    }
    space->far_.push_back({spec, nullptr, nullptr});
  }
  return space;
}

Status TableSpace::openTier(FarTier& tier) {
  if (tier.direct != nullptr || tier.remote != nullptr) return {};
  if (tier.spec.kind == FarKind::kRemote) {
    auto remote = RemoteTier::open(tier.spec, remote_timeout_);
    if (!remote) return tl::unexpected(remote.error());
    tier.remote = std::move(*remote);
    return {};
  }
  auto direct = tier.spec.kind == FarKind::kCxl
                    ? DirectFileTier::createEmulated(tier.spec.size)
                    : DirectFileTier::openDax(tier.spec.target, tier.spec.size);
  if (!direct) return tl::unexpected(direct.error());
  tier.direct = std::move(*direct);
  return {};
}

Result<Tier*> TableSpace::farTier(size_t tier) {
  if (tier == 0 || tier > far_.size()) {
    return fail(ErrorCode::kNotFound, "there is no far tier %zu; %zu are given", tier, far_.size());
  }
  MutexLock lock(mutex_);
  FarTier& far = far_[tier - 1];
  TP_TRY(openTier(far));
  return far.direct ? static_cast<Tier*>(far.direct.get()) : far.remote.get();
}

Result<std::unique_ptr<RowHome>> TableSpace::makeHome(const TableOptions& options, size_t tier) {
  if (tier == 0) return RowHome::inLocalMemory(options.format, options.rows);
  MutexLock lock(mutex_);
  FarTier& far = far_[tier - 1];
  TP_TRY(openTier(far));
  if (far.direct) return RowHome::inDirectTier(*far.direct, options.format, options.rows);
  return RowHome::inRemoteTier(*far.remote, options.format, options.rows);
}

Result<std::unique_ptr<EmbeddingTable>> TableSpace::createTable(const TableOptions& options,
                                                                size_t tier) {
  if (tier > far_.size()) {
    return fail(ErrorCode::kNotFound, "table %s: there is no far tier %zu; %zu are given",
                options.name.c_str(), tier, far_.size());
  }
  TP_TRY(EmbeddingTable::check(options));
  auto home = makeHome(options, tier);
  if (!home) return tl::unexpected(home.error());
  return EmbeddingTable::create(options, std::move(*home), workers_);
}

}  // namespace tidepool
