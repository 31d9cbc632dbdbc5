// SPDX-License-Identifier: Apache-2.0
// The table, and finding a row in it. Pure.
#include "fabricmgr/api/routes.h"

#include "fabricmgr/api/handlers.h"
#include "fabricmgr/api/schemas.h"

namespace tidepool::api {
namespace {

constexpr Roles kV = Role::kViewer | Role::kOperator | Role::kAdmin;  // who sees
constexpr Roles kVH = kV | Role::kHost;
constexpr Roles kO = Role::kOperator | Role::kAdmin;  // who operates
constexpr Roles kOH = kO | Role::kHost;
constexpr Roles kA = Role::kAdmin | Role::kNone;
constexpr Roles kAH = Role::kAdmin | Role::kHost;
constexpr Roles kH = Role::kHost | Role::kNone;
constexpr Lane kQuick = Lane::kQuick;
constexpr Lane kSlow = Lane::kSlow;
constexpr Shape kOne = Shape::kOne;
constexpr Shape kTagged = Shape::kTagged;
constexpr Shape kList = Shape::kList;
constexpr Shape kChange = Shape::kChange;

// clang-format off
// Constant: it must not depend on what other files have initialised yet.
constinit const Route kRoutes[] = {
  {"GET", "/v1/status", "showStatus", kV, kQuick, &kNoQuery, nullptr, kOne, &kStatus, "Everything in numbers.", showStatus},
  {"GET", "/v1/health", "showHealth", kVH, kSlow, &kNoQuery, nullptr, kOne, &kHealth, "What is wrong, as stable codes.", showHealth},
  {"GET", "/v1/whoami", "whoAmI", kVH, kQuick, &kNoQuery, nullptr, kOne, &kWhoAmI, "Whom the manager takes you for.", whoAmI},
  {"GET", "/v1/openapi.json", "showDocument", kVH, kSlow, &kNoQuery, nullptr, Shape::kText, nullptr, "This document.", showDocument},
  {"GET", "/metrics", "showMetrics", kV, kQuick, &kNoQuery, nullptr, Shape::kText, nullptr, "Numbers for Prometheus.", showMetrics},
  {"GET", "/v1/certificates", "listCertificates", kV, kSlow, &kPageQuery, nullptr, kList, &kCertificate, "Certificates in use, and when they end; what ends first comes first.", listCertificates},

  {"GET", "/v1/pools", "listPools", kV, kSlow, &kPageQuery, nullptr, kList, &kPool, "All pools.", listPools},
  {"POST", "/v1/pools", "addPool", kA, kSlow, &kWriteQuery, &kNewPool, kChange, &kAnswer, "Adds a pool.", addPool},
  {"GET", "/v1/pools/{name}", "showPool", kV, kQuick, &kNoQuery, nullptr, kTagged, &kPool, "One pool.", showPool},
  {"DELETE", "/v1/pools/{name}", "deletePool", kA, kSlow, &kWriteQuery, nullptr, kChange, &kAnswer, "As remove.", removePool},
  {"POST", "/v1/pools/{name}/remove", "removePool", kA, kSlow, &kWriteQuery, &kNoBody, kChange, &kAnswer, "Removes a pool without devices.", removePool},

  {"GET", "/v1/devices", "listDevices", kV, kSlow, &kDevicesQuery, nullptr, kList, &kDevice, "All devices.", listDevices},
  {"POST", "/v1/devices", "addDevice", kA, kSlow, &kWriteQuery, &kNewDevice, kChange, &kAnswer, "Adds a device, which has to answer and to hold nothing.", addDevice},
  {"GET", "/v1/devices/{name}", "showDevice", kV, kQuick, &kNoQuery, nullptr, kTagged, &kDevice, "One device.", showDevice},
  {"PATCH", "/v1/devices/{name}", "setDevice", kO, kSlow, &kWriteQuery, &kSet, kChange, &kAnswer, "Writes labels on it.", setDevice},
  {"DELETE", "/v1/devices/{name}", "deleteDevice", kA, kSlow, &kDeleteQuery, nullptr, kChange, &kAnswer, "As remove.", removeDevice},
  {"GET", "/v1/devices/{name}/removal", "checkRemoveDevice", kV, kSlow, &kNoQuery, nullptr, kOne, &kRemoval, "Who would be hurt by its removal.", checkRemoveDevice},
  {"POST", "/v1/devices/{name}/remove", "removeDevice", kA, kSlow, &kWriteQuery, &kForce, kChange, &kAnswer, "Removes a device; by force its regions are lost.", removeDevice},
  {"POST", "/v1/devices/{name}/cordon", "cordonDevice", kO, kSlow, &kWriteQuery, &kNoBody, kChange, &kAnswer, "Gives out nothing new of it.", cordonDevice},
  {"POST", "/v1/devices/{name}/drain", "drainDevice", kO, kSlow, &kWriteQuery, &kDrain, kChange, &kAnswer, "Gives out nothing new of it, and takes back its regions, once their hosts have left them.", drainDevice},
  {"POST", "/v1/devices/{name}/uncordon", "uncordonDevice", kO, kSlow, &kWriteQuery, &kNoBody, kChange, &kAnswer, "Gives out memory of it again.", uncordonDevice},

  {"GET", "/v1/hosts", "listHosts", kV, kSlow, &kHostsQuery, nullptr, kList, &kHost, "All hosts.", listHosts},
  {"POST", "/v1/hosts", "addHost", kAH, kSlow, &kWriteQuery, &kNewHost, kChange, &kAnswer, "Adds a host; an agent adds its own.", addHost},
  {"GET", "/v1/hosts/{name}", "showHost", kVH, kQuick, &kNoQuery, nullptr, kTagged, &kHost, "One host.", showHost},
  {"PATCH", "/v1/hosts/{name}", "setHost", kO, kSlow, &kWriteQuery, &kSet, kChange, &kAnswer, "Writes labels on it.", setHost},
  {"DELETE", "/v1/hosts/{name}", "deleteHost", kA, kSlow, &kWriteQuery, nullptr, kChange, &kAnswer, "As remove.", removeHost},
  {"GET", "/v1/hosts/{name}/removal", "checkRemoveHost", kV, kSlow, &kNoQuery, nullptr, kOne, &kRemoval, "Who would be hurt by its removal.", checkRemoveHost},
  {"POST", "/v1/hosts/{name}/remove", "removeHost", kA, kSlow, &kWriteQuery, &kNoBody, kChange, &kAnswer, "Removes a host without regions.", removeHost},
  {"POST", "/v1/hosts/{name}/drain", "drainHost", kO, kSlow, &kWriteQuery, &kDrain, kChange, &kAnswer, "Takes back all its regions, once it has left them.", drainHost},
  {"POST", "/v1/hosts/{name}/resume", "resumeHost", kO, kSlow, &kWriteQuery, &kNoBody, kChange, &kAnswer, "Lets it have regions again.", resumeHost},
  {"POST", "/v1/hosts:resume", "resumeHosts", kO, kSlow, &kResumeQuery, &kNoBody, kChange, &kResumedHosts, "Lets all hosts that are named have regions again, in one change; while expiry is held, silent ones get a new lease.", resumeHosts},
  {"POST", "/v1/hosts/{name}/fence", "fenceHost", kO, kSlow, &kWriteQuery, &kForce, kChange, &kAnswer, "Cuts it off from all it has, which is then erased.", fenceHost},
  {"POST", "/v1/leases/resume", "resumeLeases", kO, kSlow, &kWriteQuery, &kNoBody, kChange, &kAnswer, "Gives hosts whose expiry is held a new lease.", resumeLeases},
  {"POST", "/v1/leases/expire", "expireLeases", kO, kSlow, &kWriteQuery, &kNoBody, kChange, &kAnswer, "Confirms expiry that is held: hosts whose lease is over are cut off.", expireLeases},
  {"POST", "/v1/hosts/{name}/heartbeat", "heartbeat", kH, kQuick, &kNoQuery, &kNoBody, kOne, &kRenewal, "The agent's sign of life: renews its leases.", heartbeat},

  {"GET", "/v1/regions", "listRegions", kVH, kSlow, &kRegionsQuery, nullptr, kList, &kRegion, "Regions; an agent sees its own.", listRegions},
  {"POST", "/v1/regions", "assignRegion", kOH, kSlow, &kWriteQuery, &kNewRegion, kChange, &kAnswer, "Gives a host a region.", assignRegion},
  {"POST", "/v1/plans", "planRegion", kOH, kSlow, &kNoQuery, &kNewRegion, kOne, &kPlan, "What assigning would do now.", planRegion},
  {"GET", "/v1/regions/{id}", "showRegion", kVH, kQuick, &kNoQuery, nullptr, kTagged, &kRegion, "One region.", showRegion},
  {"PATCH", "/v1/regions/{id}", "setRegion", kO, kSlow, &kWriteQuery, &kSet, kChange, &kAnswer, "Writes labels on it.", setRegion},
  {"DELETE", "/v1/regions/{id}", "deleteRegion", kOH, kSlow, &kDeleteQuery, nullptr, kChange, &kAnswer, "As release.", releaseRegion},
  {"POST", "/v1/regions/{id}/resize", "resizeRegion", kOH, kSlow, &kWriteQuery, &kResize, kChange, &kAnswer, "Makes it larger or smaller, at its end.", resizeRegion},
  {"POST", "/v1/regions/{id}/drain", "drainRegion", kO, kSlow, &kWriteQuery, &kDrain, kChange, &kAnswer, "Takes it back, once its host has left it.", drainRegion},
  {"POST", "/v1/regions/{id}/move", "moveRegion", kO, kSlow, &kWriteQuery, &kMove, kChange, &kAnswer, "Gives its host as much on other devices, and takes it back, once its host has moved there; the answer's id is the new region's.", moveRegion},
  {"POST", "/v1/regions/{id}/resume", "resumeRegion", kO, kSlow, &kWriteQuery, &kNoBody, kChange, &kAnswer, "Calls a drain or move off; the region that was to take its place is drained then.", resumeRegion},
  {"POST", "/v1/regions/{id}/release", "releaseRegion", kOH, kSlow, &kWriteQuery, &kForce, kChange, &kAnswer, "Takes it back and erases it.", releaseRegion},
  {"POST", "/v1/regions/{id}/transfer", "transferRegion", kO, kSlow, &kWriteQuery, &kTransfer, kChange, &kAnswer, "Hands it with its bytes to another host.", transferRegion},
  {"POST", "/v1/regions/{id}/drain-progress", "reportDrain", kH, kQuick, &kNoQuery, &kDrainProgress, kOne, nullptr, "The agent's report of what it has still to move.", reportDrain},
  {"GET", "/v1/regions/{id}/access", "accessRegion", kH, kSlow, &kNoQuery, nullptr, kOne, &kAccess, "What its host needs to use it; has secrets in it.", accessRegion},
  {"GET", "/v1/regions/{id}/evidence", "showEvidence", kV, kSlow, &kNoQuery, nullptr, kList, &kEvidence, "Proof that it was erased.", showEvidence},

  {"GET", "/v1/operations", "listOperations", kV, kSlow, &kPageQuery, nullptr, kList, &kOperation, "What goes on, and went on.", listOperations},
  {"GET", "/v1/operations/{id}", "showOperation", kVH, kSlow, &kNoQuery, nullptr, kOne, &kOperation, "One operation, with its progress.", showOperation},
  {"GET", "/v1/events", "listEvents", kVH, kSlow, &kEventsQuery, nullptr, kList, &kEvent, "What has changed; waits for more, or streams it (Accept: text/event-stream).", listEvents},
  {"GET", "/v1/audit", "listAudit", kO, kSlow, &kPageQuery, nullptr, kList, &kAuditRecord, "Who did what.", listAudit},
  {"GET", "/v1/audit/verification", "verifyAudit", kO, kSlow, &kNoQuery, nullptr, kOne, &kAuditVerdict, "Whether the audit is whole.", verifyAudit},
};
// clang-format on

/// Whether `path` fits `pattern`; what stands for {...} goes to `values`.
bool fits(std::string_view pattern, std::string_view path, std::vector<std::string>* values) {
  values->clear();
  while (!pattern.empty() && !path.empty()) {
    if (pattern.front() != '{') {
      if (pattern.front() != path.front()) return false;
      pattern.remove_prefix(1);
      path.remove_prefix(1);
      continue;
    }
    const std::string_view value = path.substr(0, path.find('/'));
    if (value.empty()) return false;
    values->emplace_back(value);
    path.remove_prefix(value.size());
    pattern.remove_prefix(pattern.find('}') + 1);
  }
  return pattern.empty() && path.empty();
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }

Match matchRoute(std::string_view method, std::string_view path) {
  Match match;
  for (const Route& route : kRoutes) {
    std::vector<std::string> values;
    if (!fits(route.path, path, &values)) continue;
    if (route.method == method) {
      match.route = &route;
      match.path = std::move(values);
      return match;
    }
    match.allowed += (match.allowed.empty() ? "" : ", ") + std::string(route.method);
  }
  return match;
}

}  // namespace tidepool::api
