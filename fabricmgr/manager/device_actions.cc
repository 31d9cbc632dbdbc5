// SPDX-License-Identifier: Apache-2.0
// What devices are told, and what placement is told of them. Actions are put together under the
// manager's mutex and carried out without it.
#include <algorithm>

#include "fabricmgr/manager/impl.h"
#include "fabricmgr/model/fault_point.h"
#include "runtime/base/check.h"

namespace tidepool::fabric {
namespace {

const std::vector<Extent>& part(const std::map<DeviceId, std::vector<Extent>>& parts,
                                DeviceId device) {
  static const std::vector<Extent> nothing;
  const auto found = parts.find(device);
  return found == parts.end() ? nothing : found->second;
}

}  // namespace

DeviceAction Manager::Impl::actionOf(const Intent& intent, const Region& region) {
  const DeviceEntry* device = state.findDevice(intent.device);
  TP_CHECK(device != nullptr);
  DeviceAction action;
  action.device = device->device;
  action.action = intent.action;
  action.grant.region = region.id;
  action.grant.epoch = intent.epoch;
  action.grant.extents = part(byDevice(region.extents), intent.device);
  if (const HostEntry* host = state.findHost(region.host)) action.grant.host = host->host.name;
  if (const RegionEntry* into = state.findRegion(intent.into)) {
    action.grant.region = into->region.id;
    auto whole = part(byDevice(into->region.extents), intent.device);
    whole.insert(whole.end(), action.grant.extents.begin(), action.grant.extents.end());
    action.grant.extents = std::move(whole);
  }
  return action;
}

std::vector<DeviceAction> Manager::Impl::actionsOf(const Region& region) {
  std::vector<DeviceAction> actions;
  for (const Intent& intent : state.intentsOf(region.id)) {
    actions.push_back(actionOf(intent, region));
  }
  return actions;
}

Status Manager::Impl::act(const DeviceAction& action) {
  auto driver = drivers.of(action.device);
  if (!driver) return tl::unexpected(driver.error());
  faultPoint(FaultPoint::kBeforeAction);
  const Status done = action.action == Action::kAttach ? (*driver)->attach(action.grant)
                                                       : (*driver)->revoke(action.grant);
  faultPoint(FaultPoint::kAfterAction);
  drivers.note(action.device.id, done);
  return done;
}

Result<ScrubEvidence> Manager::Impl::erase(const DeviceAction& action) {
  auto driver = drivers.of(action.device);
  if (!driver) return tl::unexpected(driver.error());
  const RegionId region = action.grant.region;
  const Progress tell = [this, region](Bytes done) {
    MutexLock lock(mutex);
    Bytes& most = progress[region];  // each device, and each try, begins anew
    most = std::max(most, done);
  };
  const Progress silent = [](Bytes) {};
  faultPoint(FaultPoint::kBeforeErase);
  auto evidence = (*driver)->scrub(action.grant, silent);
  if (!evidence && evidence.error().code() == ErrorCode::kConflict) {
    // A device that lost its memory of the region: it is told again whose the bytes are.
    const Status revoked = (*driver)->revoke(action.grant);
    evidence = revoked ? (*driver)->scrub(action.grant, silent)
                       : Result<ScrubEvidence>(tl::unexpected(revoked.error()));
  }
  faultPoint(FaultPoint::kErased);
  if (evidence) evidence = (*driver)->verify(action.grant, *evidence, tell);
  faultPoint(FaultPoint::kVerified);
  drivers.note(action.device.id, evidence ? Status() : Status(tl::unexpected(evidence.error())));
  return evidence;
}

Obstacle Manager::Impl::obstacleOf(const DeviceEntry& entry, HostId host) {
  const Device& device = entry.device;
  if (device.state == DeviceState::kCordoned) return Obstacle::kCordoned;
  if (drivers.healthOf(device.id).health != DeviceHealth::kReachable) return Obstacle::kUnreachable;
  const bool full = device.heads > 0 && entry.heads.size() >= device.heads;
  return full && !entry.heads.contains(host) ? Obstacle::kNoHead : Obstacle::kNone;
}

std::vector<DeviceRoom> Manager::Impl::rooms(HostId host) {
  std::vector<DeviceRoom> found;
  found.reserve(state.devices().size());
  for (const auto& [id, entry] : state.devices()) {
    found.push_back({&entry.device, &entry.free, obstacleOf(entry, host)});
  }
  return found;
}

Status Manager::Impl::checkHeads(const Region& region, const Host& to) {
  for (const auto& [id, extents] : byDevice(region.extents)) {
    const DeviceEntry& entry = *state.findDevice(id);
    const bool last_of_old = entry.heads.at(region.host) == 1;
    const size_t others = entry.heads.size() - (last_of_old ? 1 : 0);
    const size_t heads = entry.device.heads;
    if (heads == 0 || entry.heads.contains(to.id) || others < heads) continue;
    return fail(ErrorCode::kRefused, "device %s has no free head for host %s",
                entry.device.name.c_str(), to.name.c_str());
  }
  return {};
}

}  // namespace tidepool::fabric
