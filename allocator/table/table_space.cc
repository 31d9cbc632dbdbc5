// SPDX-License-Identifier: Apache-2.0
// TableSpace: tiers that are opened when they are needed.
#include "allocator/table/table_space.h"

#include <sched.h>

#include <algorithm>

#include "runtime/tier/far_kind.h"

namespace tidepool {
namespace {

/// Processors that this process may run on.
size_t processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<size_t>(std::max(1, CPU_COUNT(&set)));
}

/// As the statistics call a tier: the size where nothing else tells it from others of its kind.
std::string tierName(const FarSpec& spec) {
  FarSpec unsized = spec;
  unsized.size = Bytes();
  char text[192];
  if (!renderFarSpec(unsized, text)) return std::string(spec.kind->name);
  std::string name(text);
  if (spec.size > Bytes() && name.find(':') == std::string::npos) {
    name += ":" + std::to_string(spec.size.value() / kMiB) + "M";
  }
  return name;
}

}  // namespace

TableSpace::~TableSpace() = default;

Result<std::unique_ptr<TableSpace>> TableSpace::create(std::span<const FarSpec> far, size_t threads,
                                                       const Patience& patience, Bytes budget,
                                                       RowStores* stores, const char* agent) {
  std::unique_ptr<TableSpace> space(
      new TableSpace(threads == 0 ? processors() : threads, patience, budget, stores, agent));
  for (const FarSpec& spec : far) {
    space->far_.push_back({spec, nullptr, nullptr, nullptr, nullptr});
  }
  return space;
}

Status TableSpace::openTier(size_t number) {
  FarTier& tier = far_[number];
  if (tier.open()) return {};
  // Regions of the run's, or the process's, are for pages: tables have some of their own.
  if (tier.spec.kind->open == nullptr) return openFabric(tier);
  if (stores_ == nullptr) return openOwnTier(tier);
  auto store = stores_->open(number);
  if (!store) {
    const ErrorCode code = store.error().code();
    if (code == ErrorCode::kPermission || code == ErrorCode::kUnsupported) return openOwnTier(tier);
    return tl::unexpected(store.error());
  }
  tier.store = std::move(*store);
  return {};
}

Status TableSpace::openFabric(FarTier& tier) {
  auto fabric = FabricPool::open(agent_.c_str(), tier.spec.size, patience_, local_);
  if (!fabric) return tl::unexpected(fabric.error());
  tier.fabric = std::move(*fabric);
  return {};
}

Status TableSpace::LocalMemory::take(Bytes size) {
  return space_.stores_ != nullptr ? space_.stores_->chargeLocal(size) : space_.shared_.lend(size);
}

void TableSpace::LocalMemory::giveBack(Bytes size) {
  if (space_.stores_ != nullptr) return space_.stores_->dischargeLocal(size);
  space_.shared_.takeBack(size);
}

Status TableSpace::openOwnTier(FarTier& far) {
  auto tier = far.spec.kind->open(far.spec, patience_);
  if (!tier) return tl::unexpected(tier.error());
  auto store = (*tier)->rowStore();
  if (store == nullptr) {
    return fail(ErrorCode::kUnsupported, "%s lends no rows: name another tier", (*tier)->name());
  }
  FetchTier* const fetch = (*tier)->fetch();
  if (fetch != nullptr && fetch->mirror() != nullptr) {
    auto tender = TierTender::start(*fetch);
    if (!tender) return tl::unexpected(tender.error());
    far.tender = std::move(*tender);
  }
  far.tier = std::move(*tier);
  far.store = std::move(store);
  return {};
}

Result<Tier*> TableSpace::farTier(size_t tier) {
  if (tier == 0 || tier > far_.size()) {
    return fail(ErrorCode::kNotFound, "there is no far tier %zu; %zu are given", tier, far_.size());
  }
  MutexLock lock(mutex_);
  TP_TRY(openTier(tier - 1));
  const FarTier& far = far_[tier - 1];
  if (far.fabric) {
    return fail(ErrorCode::kUnsupported, "far tier %zu is of the fabric, for tables only", tier);
  }
  if (far.tier) return far.tier.get();
  return fail(ErrorCode::kUnsupported, "far tier %zu is shared by all of this run, for rows only",
              tier);
}

Result<std::unique_ptr<BackingStore>> TableSpace::makeBackingStore(const TableOptions& options,
                                                                   size_t tier) {
  if (tier == 0) return BackingStore::inLocalMemory(options.format, options.rows);
  FabricPool* fabric = nullptr;
  {
    MutexLock lock(mutex_);
    TP_TRY(openTier(tier - 1));
    fabric = far_[tier - 1].fabric.get();
    if (fabric == nullptr) {
      return BackingStore::inStore(*far_[tier - 1].store, options.format, options.rows);
    }
  }
  // Without the lock: the agent may take its time.
  auto rows = fabric->makeRows(Bytes(options.format.stride()), options.rows);
  if (!rows) return tl::unexpected(rows.error());
  return BackingStore::inFabric(std::move(*rows));
}

/// Where a table of the options would be. Errors: kNotFound, kInvalidArgument, kUnsupported.
Result<TierKind> TableSpace::kindOf(const TableOptions& options, size_t tier) const {
  if (tier > far_.size()) {
    return fail(ErrorCode::kNotFound, "table %s: there is no far tier %zu; %zu are given",
                options.name.c_str(), tier, far_.size());
  }
  TP_TRY(EmbeddingTable::check(options));
  if (tier == 0) return TierKind::kLocal;
  const FarKind& kind = *far_[tier - 1].spec.kind;
  if (kind.tables) return *kind.tables;
  return fail(ErrorCode::kUnsupported,
              "table %s: far tier %zu (%.*s) lends no rows: name another tier",
              options.name.c_str(), tier, static_cast<int>(kind.name.size()), kind.name.data());
}

bool TableSpace::fetchesAll() const {
  return std::all_of(far_.begin(), far_.end(), [](const FarTier& tier) {
    return tier.spec.kind->open != nullptr && tier.spec.kind->tables == TierKind::kFetch;
  });
}

Result<Bytes> TableSpace::leastDram(const TableOptions& options, size_t tier) const {
  const auto kind = kindOf(options, tier);
  if (!kind) return tl::unexpected(kind.error());
  return DramPlan::least(options, *kind);
}

Result<Bytes> TableSpace::leastShare(const TableOptions& options, size_t tier) const {
  const auto kind = kindOf(options, tier);
  if (!kind) return tl::unexpected(kind.error());
  return SharedBudget::leastShare(options, *kind);
}

Result<std::unique_ptr<EmbeddingTable>> TableSpace::createTable(const TableOptions& options,
                                                                size_t tier) {
  const auto kind = kindOf(options, tier);
  if (!kind) return tl::unexpected(kind.error());
  auto backing = makeBackingStore(options, tier);
  if (!backing) return tl::unexpected(backing.error());
  const bool shares = tier != 0 && options.dram == Bytes() && shared_.budget() > Bytes();
  auto table = shares ? shared_.createTable(options, std::move(*backing), workers_)
                      : EmbeddingTable::create(options, std::move(*backing), workers_);
  const TidepoolRunApi* const run = table ? runThatListsTables() : nullptr;
  if (run != nullptr) {
    (*table)->listIn(*run, tier == 0 ? "local" : tierName(far_[tier - 1].spec).c_str());
  }
  return table;
}

}  // namespace tidepool
