// SPDX-License-Identifier: Apache-2.0
// Hosts, and their agents' heartbeats. An agent sees and adds its own host alone.
#include "fabricmgr/api/call_tools.h"

namespace tidepool::api {

using fabric::Caller;
using fabric::Manager;

Outcome listHosts(const Call& call) {
  const auto selector = selectorOf(call);
  if (!selector) return tl::unexpected(selector.error());
  return list(call, call.service.manager().listHosts(pageOf(call), *selector));
}

Outcome addHost(const Call& call) {
  const auto caller = callerOf(call);
  if (!caller) return tl::unexpected(caller.error());
  fabric::HostSpec spec;
  spec.name = call.body.text("name");
  spec.domain = call.body.text("domain");
  spec.lease = fromMilliseconds(call.body.count("lease_ms"));
  TP_TRY(checkMine(call, spec.name));
  return changed(call, call.service.manager().addHost(*caller, spec), "/v1/hosts/" + spec.name);
}

Outcome showHost(const Call& call) {
  TP_TRY(checkMine(call, call.path.front()));
  const auto host = call.service.manager().showHost(call.path.front());
  return one(call, host, host ? host->host.modified : fabric::Index());
}

Outcome setHost(const Call& call) {
  return change(call, [&](Manager& manager, const Caller& caller) {
    return manager.labelHost(caller, call.path.front(), labelChangeOf(call));
  });
}

Outcome checkRemoveHost(const Call& call) {
  return one(call, call.service.manager().checkRemoveHost(call.path.front()));
}

Outcome removeHost(const Call& call) {
  return change(call, [&](Manager& manager, const Caller& caller) {
    return manager.removeHost(caller, call.path.front());
  });
}

Outcome drainHost(const Call& call) {
  return change(call, [&](Manager& manager, const Caller& caller) {
    return manager.drainHost(caller, call.path.front(),
                             fromMilliseconds(call.body.count("deadline_ms")));
  });
}

Outcome resumeHost(const Call& call) {
  return change(call, [&](Manager& manager, const Caller& caller) {
    return manager.resumeHost(caller, call.path.front());
  });
}

Outcome resumeHosts(const Call& call) {
  const auto caller = callerOf(call);
  if (!caller) return tl::unexpected(caller.error());
  const auto selector = selectorOf(call);
  if (!selector) return tl::unexpected(selector.error());
  // Nobody is to mean all hosts by a variable that happens to be empty.
  if (call.query.flag("all") != selector->isEverything()) {
    return fail(ErrorCode::kInvalidArgument,
                "say which hosts: either all=true, or a selector that is not empty");
  }
  return one(call, call.service.manager().resumeHosts(*caller, *selector));
}

Outcome fenceHost(const Call& call) {
  return change(call, [&](Manager& manager, const Caller& caller) {
    return manager.fenceHost(caller, call.path.front(), forceOf(call));
  });
}

Outcome resumeLeases(const Call& call) {
  return change(
      call, [](Manager& manager, const Caller& caller) { return manager.resumeLeases(caller); });
}

Outcome expireLeases(const Call& call) {
  return change(
      call, [](Manager& manager, const Caller& caller) { return manager.expireLeases(caller); });
}

Outcome heartbeat(const Call& call) {
  TP_TRY(checkMine(call, call.path.front()));
  return one(call, call.service.manager().renewLease(call.path.front()));
}

}  // namespace tidepool::api
