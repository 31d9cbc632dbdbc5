// SPDX-License-Identifier: Apache-2.0
// Pools and devices.
#include "fabricmgr/api/call_tools.h"

namespace tidepool::api {

using fabric::Caller;
using fabric::Manager;

Outcome listPools(const Call& call) {
  return list(call, call.service.manager().listPools(pageOf(call)));
}

Outcome addPool(const Call& call) {
  const auto caller = callerOf(call);
  if (!caller) return tl::unexpected(caller.error());
  // The schema lets only names of classes in.
  const auto memory_class = *fabric::memoryClassOf(call.body.text("class"));
  const std::string& name = call.body.text("name");
  return changed(call, call.service.manager().addPool(*caller, name, memory_class),
                 "/v1/pools/" + name);
}

Outcome showPool(const Call& call) {
  const auto pool = call.service.manager().showPool(call.path.front());
  return one(call, pool, pool ? pool->pool.modified : fabric::Index());
}

Outcome removePool(const Call& call) {
  return change(call, [&](Manager& manager, const Caller& caller) {
    return manager.removePool(caller, call.path.front());
  });
}

Outcome listDevices(const Call& call) {
  const auto selector = selectorOf(call);
  if (!selector) return tl::unexpected(selector.error());
  return list(call,
              call.service.manager().listDevices(pageOf(call), call.query.text("pool"), *selector));
}

Outcome addDevice(const Call& call) {
  const auto caller = callerOf(call);
  if (!caller) return tl::unexpected(caller.error());
  fabric::DeviceSpec spec;
  spec.name = call.body.text("name");
  spec.pool = call.body.text("pool");
  spec.address = call.body.text("address");
  spec.domain = call.body.text("domain");
  spec.capacity = Bytes(call.body.count("capacity_bytes"));
  spec.granularity = Bytes(call.body.count("granularity_bytes"));
  spec.heads = static_cast<uint32_t>(call.body.count("heads"));
  return changed(call, call.service.manager().addDevice(*caller, spec), "/v1/devices/" + spec.name);
}

Outcome showDevice(const Call& call) {
  const auto device = call.service.manager().showDevice(call.path.front());
  return one(call, device, device ? device->device.modified : fabric::Index());
}

Outcome setDevice(const Call& call) {
  return change(call, [&](Manager& manager, const Caller& caller) {
    return manager.labelDevice(caller, call.path.front(), labelChangeOf(call));
  });
}

Outcome checkRemoveDevice(const Call& call) {
  return one(call, call.service.manager().checkRemoveDevice(call.path.front()));
}

Outcome removeDevice(const Call& call) {
  return change(call, [&](Manager& manager, const Caller& caller) {
    return manager.removeDevice(caller, call.path.front(), forceOf(call));
  });
}

Outcome cordonDevice(const Call& call) {
  return change(call, [&](Manager& manager, const Caller& caller) {
    return manager.cordonDevice(caller, call.path.front());
  });
}

Outcome uncordonDevice(const Call& call) {
  return change(call, [&](Manager& manager, const Caller& caller) {
    return manager.uncordonDevice(caller, call.path.front());
  });
}

Outcome drainDevice(const Call& call) {
  return change(call, [&](Manager& manager, const Caller& caller) {
    return manager.drainDevice(caller, call.path.front(),
                               fromMilliseconds(call.body.count("deadline_ms")));
  });
}

}  // namespace tidepool::api
