// SPDX-License-Identifier: Apache-2.0
// What the manager shows. Copies are taken under the mutex; then what they show is waited for to be
// durable, so that nobody ever sees what a crash could take back.
#include "fabricmgr/manager/impl.h"
#include "fabricmgr/manager/step.h"

namespace tidepool::fabric {
namespace {

constexpr uint32_t kLargestPage = 10'000;

Status checkPage(const PageRequest& page) {
  if (page.limit >= 1 && page.limit <= kLargestPage) return {};
  return fail(ErrorCode::kInvalidArgument, "a page has 1 to 10000 entries, not %u", page.limit);
}

PoolInfo infoOf(const Pool& pool) { return {pool, 0, Bytes(), Bytes()}; }

DeviceInfo infoOf(Manager::Impl& impl, const DeviceEntry& entry) TP_REQUIRES(impl.mutex) {
  const auto health = impl.drivers.healthOf(entry.device.id);
  const Pool* pool = impl.state.findPool(entry.device.pool);
  DeviceInfo info;
  info.device = entry.device;
  info.pool = pool == nullptr ? "" : pool->name;
  info.health = health.health;
  info.trouble = health.trouble;
  info.free = entry.free.free();
  info.largest_free = entry.free.largest();
  info.regions = entry.regions.size();
  info.hosts = entry.heads.size();
  return info;
}

std::optional<Nanoseconds> leaseLeft(Manager::Impl& impl, HostId host) TP_REQUIRES(impl.mutex) {
  if (impl.followed != nullptr) return std::nullopt;
  return impl.leaseLeft(host);
}

HostInfo infoOf(Manager::Impl& impl, const HostEntry& entry) TP_REQUIRES(impl.mutex) {
  return {entry.host, leaseLeft(impl, entry.host.id), entry.regions.size(), entry.held};
}

/// Its own drain and its host's may both have a deadline: the earlier one counts.
std::optional<Nanoseconds> drainLeft(Manager::Impl& impl, const RegionEntry& entry,
                                     const HostEntry* host) TP_REQUIRES(impl.mutex) {
  if (impl.followed != nullptr) return std::nullopt;
  if (host == nullptr || entry.region.state != RegionState::kDraining) return Nanoseconds();
  Nanoseconds left;
  for (const OperationId id : {entry.operation, host->operation}) {
    const Nanoseconds own = impl.deadlineLeft(id);
    if (own > Nanoseconds() && (left == Nanoseconds() || own < left)) left = own;
  }
  return left;
}

RegionInfo infoOf(Manager::Impl& impl, const RegionEntry& entry) TP_REQUIRES(impl.mutex) {
  RegionInfo info;
  info.region = entry.region;
  info.operation = entry.operation;
  if (const Operation* move = impl.state.moveInto(entry.region.id)) info.replaces = move->region;
  const HostEntry* host = impl.state.findHost(entry.region.host);
  info.lease_left = leaseLeft(impl, entry.region.host);
  info.drain_left = drainLeft(impl, entry, host);
  if (host == nullptr) return info;
  info.host = host->host.name;
  if (info.operation == OperationId()) info.operation = host->operation;
  return info;
}

/// How far a running operation is.
Operation withProgress(Manager::Impl& impl, Operation operation) TP_REQUIRES(impl.mutex) {
  const auto running = impl.state.findOperation(operation.id);
  if (running == nullptr) {
    if (operation.state == OperationState::kDone) operation.done = operation.total;
    return operation;
  }
  operation.text = running->text;
  if (const Nanoseconds left = impl.deadlineLeft(operation.id); left > Nanoseconds()) {
    operation.deadline = impl.options.wall_clock->now() + left;
  }
  if (const auto at = impl.progress.find(operation.region); at != impl.progress.end()) {
    operation.done = at->second;
  } else if (const HostEntry* host = impl.state.findHost(operation.host);
             host != nullptr && operation.region == RegionId() && host->held < operation.total) {
    operation.done = operation.total - host->held;
  }
  return operation;
}

constexpr auto kAll = [](const auto&) { return true; };

/// What a page shows of a map ordered by id, and in `next` where the following one begins.
template <typename Id, typename Entry, typename Wanted>
std::vector<const Entry*> pick(const std::map<Id, Entry>& map, const PageRequest& request,
                               Wanted wanted, uint64_t* next) {
  std::vector<const Entry*> picked;
  for (auto at = map.upper_bound(Id(request.cursor)); at != map.end(); ++at) {
    if (picked.size() == request.limit) {
      *next = std::prev(at)->first.value();
      break;
    }
    if (wanted(at->second)) picked.push_back(&at->second);
  }
  return picked;
}

}  // namespace

std::string_view nameOf(DeviceHealth value) {
  switch (value) {
    case DeviceHealth::kUnknown:
      return "unknown";
    case DeviceHealth::kReachable:
      return "reachable";
    case DeviceHealth::kUnreachable:
      return "unreachable";
    case DeviceHealth::kSuperseded:
      return "superseded";
    case DeviceHealth::kForeign:
      return "foreign";
  }
  return "unknown";
}

namespace {

/// Sums of devices, by pool.
std::map<PoolId, PoolInfo> poolSums(Manager::Impl& impl) TP_REQUIRES(impl.mutex) {
  std::map<PoolId, PoolInfo> sums;
  for (const auto& [id, pool] : impl.state.pools()) sums.emplace(id, infoOf(pool));
  for (const auto& [id, entry] : impl.state.devices()) {
    PoolInfo& pool = sums.at(entry.device.pool);
    ++pool.devices;
    pool.capacity += entry.device.capacity;
    pool.free += entry.free.free();
  }
  return sums;
}

}  // namespace

Result<Page<PoolInfo>> Manager::listPools(const PageRequest& request) {
  TP_TRY(checkPage(request));
  return shown(*impl_, [&](Impl& impl) TP_REQUIRES(impl.mutex) -> Result<Page<PoolInfo>> {
    Page<PoolInfo> page;
    page.index = impl.last_index;
    const std::map<PoolId, PoolInfo> sums = poolSums(impl);
    for (const PoolInfo* pool : pick(sums, request, kAll, &page.next)) page.items.push_back(*pool);
    return page;
  });
}

Result<PoolInfo> Manager::showPool(const std::string& name) {
  return shown(*impl_, [&](Impl& impl) TP_REQUIRES(impl.mutex) -> Result<PoolInfo> {
    const Pool* pool = impl.state.findPool(name);
    if (pool == nullptr) return noSuch("pool", name);
    return poolSums(impl).at(pool->id);
  });
}

Result<Page<DeviceInfo>> Manager::listDevices(const PageRequest& request, const std::string& pool,
                                              const Selector& selector) {
  TP_TRY(checkPage(request));
  return shown(*impl_, [&](Impl& impl) TP_REQUIRES(impl.mutex) -> Result<Page<DeviceInfo>> {
    const Pool* only = pool.empty() ? nullptr : impl.state.findPool(pool);
    if (only == nullptr && !pool.empty()) return noSuch("pool", pool);
    Page<DeviceInfo> page;
    page.index = impl.last_index;
    const auto wanted = [&](const DeviceEntry& entry) {
      return (only == nullptr || entry.device.pool == only->id) &&
             selector.matches(entry.device.labels);
    };
    for (const DeviceEntry* entry : pick(impl.state.devices(), request, wanted, &page.next)) {
      page.items.push_back(infoOf(impl, *entry));
    }
    return page;
  });
}

Result<DeviceInfo> Manager::showDevice(const std::string& name) {
  return shown(*impl_, [&](Impl& impl) TP_REQUIRES(impl.mutex) -> Result<DeviceInfo> {
    const DeviceEntry* entry = impl.state.findDevice(name);
    if (entry == nullptr) return noSuch("device", name);
    return infoOf(impl, *entry);
  });
}

Result<Page<HostInfo>> Manager::listHosts(const PageRequest& request, const Selector& selector) {
  TP_TRY(checkPage(request));
  return shown(*impl_, [&](Impl& impl) TP_REQUIRES(impl.mutex) -> Result<Page<HostInfo>> {
    Page<HostInfo> page;
    page.index = impl.last_index;
    const auto wanted = [&](const HostEntry& entry) { return selector.matches(entry.host.labels); };
    for (const HostEntry* entry : pick(impl.state.hosts(), request, wanted, &page.next)) {
      page.items.push_back(infoOf(impl, *entry));
    }
    return page;
  });
}

Result<HostInfo> Manager::showHost(const std::string& name) {
  return shown(*impl_, [&](Impl& impl) TP_REQUIRES(impl.mutex) -> Result<HostInfo> {
    const HostEntry* entry = impl.state.findHost(name);
    if (entry == nullptr) return noSuch("host", name);
    return infoOf(impl, *entry);
  });
}

namespace {

/// Who is asked for, names resolved.
struct Wanted {
  const HostEntry* host = nullptr;
  const DeviceEntry* device = nullptr;
  const Pool* pool = nullptr;
  std::optional<RegionState> state;
};

Result<Wanted> resolve(Manager::Impl& impl, const RegionFilter& filter) TP_REQUIRES(impl.mutex) {
  Wanted wanted;
  wanted.state = filter.state;
  if (!filter.host.empty()) {
    wanted.host = impl.state.findHost(filter.host);
    if (wanted.host == nullptr) return noSuch("host", filter.host);
  }
  if (!filter.device.empty()) {
    wanted.device = impl.state.findDevice(filter.device);
    if (wanted.device == nullptr) return noSuch("device", filter.device);
  }
  if (!filter.pool.empty()) {
    wanted.pool = impl.state.findPool(filter.pool);
    if (wanted.pool == nullptr) return noSuch("pool", filter.pool);
  }
  return wanted;
}

bool matches(Manager::Impl& impl, const Wanted& wanted, const Region& region)
    TP_REQUIRES(impl.mutex) {
  if (wanted.state && region.state != *wanted.state) return false;
  if (wanted.host != nullptr && region.host != wanted.host->host.id) return false;
  if (wanted.device == nullptr && wanted.pool == nullptr) return true;
  for (const Extent& extent : region.extents) {
    const bool here = wanted.device == nullptr || extent.device == wanted.device->device.id;
    const DeviceEntry* device = impl.state.findDevice(extent.device);
    if (here && (wanted.pool == nullptr || device->device.pool == wanted.pool->id)) return true;
  }
  return false;
}

}  // namespace

Result<Page<RegionInfo>> Manager::listRegions(const PageRequest& request,
                                              const RegionFilter& filter) {
  TP_TRY(checkPage(request));
  return shown(*impl_, [&](Impl& impl) TP_REQUIRES(impl.mutex) -> Result<Page<RegionInfo>> {
    const auto wanted = resolve(impl, filter);
    if (!wanted) return tl::unexpected(wanted.error());
    Page<RegionInfo> page;
    page.index = impl.last_index;
    RegionId last;
    const auto take = [&](const RegionEntry& entry) TP_REQUIRES(impl.mutex) {
      if (!matches(impl, *wanted, entry.region)) return true;
      if (!filter.selector.matches(entry.region.labels)) return true;
      if (page.items.size() == request.limit) {
        page.next = last.value();
        return false;
      }
      page.items.push_back(infoOf(impl, entry));
      last = entry.region.id;
      return true;
    };
    const RegionId cursor(request.cursor);
    if (wanted->host != nullptr) {  // few, and known
      const auto& held = wanted->host->regions;
      for (auto at = held.upper_bound(cursor); at != held.end(); ++at) {
        if (!take(*impl.state.findRegion(*at))) break;
      }
      return page;
    }
    const auto& all = impl.state.regions();
    for (auto at = all.upper_bound(cursor); at != all.end(); ++at) {
      if (!take(at->second)) break;
    }
    return page;
  });
}

Result<RegionInfo> Manager::showRegion(RegionId id) {
  return shown(*impl_, [&](Impl& impl) TP_REQUIRES(impl.mutex) -> Result<RegionInfo> {
    const RegionEntry* entry = impl.state.findRegion(id);
    if (entry == nullptr) return noSuchRegion(id);
    return infoOf(impl, *entry);
  });
}

Result<Page<Operation>> Manager::listOperations(const PageRequest& request) {
  TP_TRY(checkPage(request));
  Impl& impl = *impl_;
  const Index now = index();
  auto found = impl.store->operationsAfter(OperationId(request.cursor), request.limit + 1);
  if (!found) return tl::unexpected(found.error());
  Page<Operation> page;
  page.index = now;
  MutexLock lock(impl.mutex);
  for (Operation& operation : *found) {
    if (page.items.size() == request.limit) {
      page.next = page.items.back().id.value();
      break;
    }
    page.items.push_back(withProgress(impl, std::move(operation)));
  }
  return page;
}

Result<Operation> Manager::showOperation(OperationId id) {
  Impl& impl = *impl_;
  auto found = impl.store->findOperation(id);
  if (!found) return tl::unexpected(found.error());
  if (!*found) {
    return fail(ErrorCode::kNotFound, "there is no operation %llu",
                static_cast<unsigned long long>(id.value()));
  }
  MutexLock lock(impl.mutex);
  return withProgress(impl, std::move(**found));
}

Result<std::vector<ScrubEvidence>> Manager::evidence(RegionId region) {
  auto found = impl_->store->evidenceOf(region);
  if (found && found->empty()) {
    return fail(ErrorCode::kNotFound, "region %llu was not erased",
                static_cast<unsigned long long>(region.value()));
  }
  return found;
}

Result<Totals> Manager::totals() {
  return shown(*impl_, [&](Impl& impl) TP_REQUIRES(impl.mutex) -> Result<Totals> {
    Totals totals;
    totals.index = impl.last_index;
    totals.follows = impl.followed != nullptr;
    const Leader leader = this->leader();
    totals.fabric = leader.fabric;
    totals.term = leader.term;
    totals.superseded_by = impl.leadership.supersededBy();
    totals.pools = impl.state.pools().size();
    totals.devices = impl.state.devices().size();
    totals.unreachable = impl.drivers.away(DeviceHealth::kUnreachable).size();
    totals.foreign = impl.drivers.away(DeviceHealth::kForeign).size();
    totals.hosts = impl.state.hosts().size();
    for (const auto& [id, entry] : impl.state.hosts()) {
      const bool fenced = entry.host.state == HostState::kFenced;
      const bool over = !fenced && leaseLeft(impl, id) == Nanoseconds();
      totals.hosts_fenced += fenced;
      totals.hosts_silent += over;
      totals.hosts_held += over && impl.expiry_held && !entry.regions.empty();
    }
    totals.leases_expired = impl.expired;
    totals.regions = impl.state.regions().size();
    totals.operations = impl.state.operations().size();
    for (const auto& [id, entry] : impl.state.devices()) {
      totals.capacity += entry.device.capacity;
      totals.free += entry.free.free();
    }
    totals.regions_by_state = impl.state.regionsByState();
    return totals;
  });
}

void Manager::nameAll(Names* names) {
  MutexLock lock(impl_->mutex);
  State& state = impl_->state;
  for (auto& [id, name] : names->pools) {
    if (const Pool* pool = state.findPool(id)) name = pool->name;
  }
  for (auto& [id, name] : names->devices) {
    if (const DeviceEntry* entry = state.findDevice(id)) name = entry->device.name;
  }
  for (auto& [id, name] : names->hosts) {
    if (const HostEntry* entry = state.findHost(id)) name = entry->host.name;
  }
}

Index Manager::index() const { return impl_->store->durable(); }

Result<Manager::Events> Manager::eventsSince(Index since, uint32_t limit, const std::string& host) {
  TP_TRY(checkPage({0, limit}));
  HostId only;
  if (!host.empty()) {
    MutexLock lock(impl_->mutex);
    const HostEntry* entry = impl_->state.findHost(host);
    if (entry == nullptr) return noSuch("host", host);
    only = entry->host.id;
  }
  // Read before the events: none up to it is missed by going on from there.
  const Index now = index();
  if (since > now) {
    return fail(ErrorCode::kNotFound,
                "index %llu is yet to come, the last one is %llu: was an old store put back? List "
                "anew, and go on from there",
                static_cast<unsigned long long>(since.value()),
                static_cast<unsigned long long>(now.value()));
  }
  auto found = impl_->store->eventsAfter(since, limit, only);
  if (!found) return tl::unexpected(found.error());
  Events events;
  events.index = found->size() < limit ? now : std::min(now, found->back().index);
  // What came after that is for the next one who asks: from an index that was not yet known to be
  // durable nobody could go on.
  std::erase_if(*found, [now](const Event& event) { return event.index > now; });
  events.events = std::move(*found);
  return events;
}

Result<Page<AuditRecord>> Manager::listAudit(const PageRequest& request) {
  TP_TRY(checkPage(request));
  Page<AuditRecord> page;
  page.index = index();
  auto found = impl_->store->auditAfter(request.cursor, request.limit);
  if (!found) return tl::unexpected(found.error());
  page.items = std::move(*found);
  if (page.items.size() == request.limit) page.next = page.items.back().sequence;
  return page;
}

Result<AuditVerdict> Manager::verifyAudit() { return fabric::verifyAudit(*impl_->store); }

}  // namespace tidepool::fabric
