// SPDX-License-Identifier: Apache-2.0
// Regions: an agent sees, makes and gives back those of its own host.
#include "fabricmgr/api/call_tools.h"

namespace tidepool::api {
namespace {

using fabric::Caller;
using fabric::Manager;
using fabric::RegionId;

/// Errors: for agents kNotFound, and kPermission when the region is another host's. It may become
/// that before the verb is carried out: what has changed since this look is refused.
Status mayChange(const Call& call, RegionId region, Caller* caller) {
  if (call.principal.role != Role::kHost) return {};
  const auto info = call.service.manager().showRegion(region);
  if (!info) return tl::unexpected(info.error());
  TP_TRY(checkMine(call, info->host));
  const fabric::Index seen = info->region.modified;
  if (caller->expected == fabric::Index() || caller->expected > seen) caller->expected = seen;
  return {};
}

/// A verb on the region of the path.
template <typename Verb>
Outcome changeRegion(const Call& call, Verb verb) {
  const auto number = numberOf(call, "a region");
  if (!number) return tl::unexpected(number.error());
  auto caller = callerOf(call);
  if (!caller) return tl::unexpected(caller.error());
  const RegionId region(*number);
  TP_TRY(mayChange(call, region, &*caller));
  return changed(call, verb(call.service.manager(), *caller, region));
}

Result<fabric::AssignSpec> specOf(const Call& call) {
  fabric::AssignSpec spec;
  spec.host = call.body.text("host");
  spec.label = call.body.text("label");
  spec.pool = call.body.text("pool");
  spec.size = Bytes(call.body.count("size_bytes"));
  if (const std::string& name = call.body.text("class"); !name.empty() && name != "any") {
    spec.memory_class = *fabric::memoryClassOf(name);  // the schema lets no others in
  }
  spec.constraints = constraintsOf(call.body);
  TP_TRY(checkMine(call, spec.host));
  return spec;
}

fabric::Plan planIn(const JsonValue& given) {
  fabric::Plan plan;
  plan.index = fabric::Index(given.count("index"));
  for (const JsonValue& extent : given.list("extents")) {
    plan.extents.push_back({fabric::DeviceId(extent.count("device_id")),
                            extent.count("offset_bytes"), Bytes(extent.count("length_bytes"))});
  }
  return plan;
}

}  // namespace

Outcome listRegions(const Call& call) {
  fabric::RegionFilter filter;
  filter.host = call.query.text("host");
  filter.device = call.query.text("device");
  filter.pool = call.query.text("pool");
  filter.state = fabric::regionStateOf(call.query.text("state"));
  auto selector = selectorOf(call);
  if (!selector) return tl::unexpected(selector.error());
  filter.selector = std::move(*selector);
  const Principal& principal = call.principal;
  if (principal.role == Role::kHost && filter.host.empty()) filter.host = principal.name;
  TP_TRY(checkMine(call, filter.host));
  return list(call, call.service.manager().listRegions(pageOf(call), filter));
}

Outcome assignRegion(const Call& call) {
  const auto caller = callerOf(call);
  if (!caller) return tl::unexpected(caller.error());
  const auto spec = specOf(call);
  if (!spec) return tl::unexpected(spec.error());
  Manager& manager = call.service.manager();
  const JsonValue* plan = call.body.find("plan");
  const auto answer = plan != nullptr ? manager.apply(*caller, *spec, planIn(*plan))
                                      : manager.assign(*caller, *spec);
  return changed(call, answer, fmt::format("/v1/regions/{}", answer ? answer->id : 0));
}

Outcome planRegion(const Call& call) {
  const auto spec = specOf(call);
  if (!spec) return tl::unexpected(spec.error());
  if (call.body.find("plan") != nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                "field 'plan' is what this request answers: leave it "
                "out here, and send it with POST /v1/regions");
  }
  return one(call, call.service.manager().plan(*spec));
}

Outcome showRegion(const Call& call) {
  const auto number = numberOf(call, "a region");
  if (!number) return tl::unexpected(number.error());
  const auto info = call.service.manager().showRegion(RegionId(*number));
  if (!info) return tl::unexpected(info.error());
  TP_TRY(checkMine(call, info->host));
  return one(call, info, info->region.modified);
}

Outcome setRegion(const Call& call) {
  return changeRegion(call, [&](Manager& manager, const Caller& caller, RegionId region) {
    return manager.labelRegion(caller, region, labelChangeOf(call));
  });
}

Outcome resizeRegion(const Call& call) {
  return changeRegion(call, [&](Manager& manager, const Caller& caller, RegionId region) {
    return manager.resize(caller, region, Bytes(call.body.count("size_bytes")),
                          constraintsOf(call.body));
  });
}

Outcome drainRegion(const Call& call) {
  return changeRegion(call, [&](Manager& manager, const Caller& caller, RegionId region) {
    return manager.drainRegion(caller, region, fromMilliseconds(call.body.count("deadline_ms")));
  });
}

Outcome moveRegion(const Call& call) {
  auto selector = fabric::Selector::parse(call.body.text("selector"));
  if (!selector) return tl::unexpected(selector.error());
  const fabric::MoveSpec spec = {call.body.text("device"), std::move(*selector),
                                 fromMilliseconds(call.body.count("deadline_ms"))};
  return changeRegion(call, [&](Manager& manager, const Caller& caller, RegionId region) {
    return manager.moveRegion(caller, region, spec);
  });
}

Outcome resumeRegion(const Call& call) {
  return changeRegion(call, [](Manager& manager, const Caller& caller, RegionId region) {
    return manager.resumeRegion(caller, region);
  });
}

Outcome releaseRegion(const Call& call) {
  return changeRegion(call, [&](Manager& manager, const Caller& caller, RegionId region) {
    const Principal& principal = call.principal;
    const std::string by_host = principal.role == Role::kHost ? principal.name : "";
    return manager.releaseRegion(caller, region, by_host, forceOf(call));
  });
}

Outcome transferRegion(const Call& call) {
  return changeRegion(call, [&](Manager& manager, const Caller& caller, RegionId region) {
    return manager.transferRegion(caller, region, call.body.text("host"), forceOf(call));
  });
}

Outcome reportDrain(const Call& call) {
  const auto number = numberOf(call, "a region");
  if (!number) return tl::unexpected(number.error());
  TP_TRY(call.service.manager().reportDrain(
      call.principal.name, RegionId(*number),
      {Bytes(call.body.count("left_bytes")), call.body.count("process"),
       call.body.text("waits_for")}));
  return Response{204, "", {}, ""};
}

Outcome accessRegion(const Call& call) {
  const auto number = numberOf(call, "a region");
  if (!number) return tl::unexpected(number.error());
  return one(call, call.service.manager().access(call.principal.name, RegionId(*number)));
}

Outcome showEvidence(const Call& call) {
  const auto number = numberOf(call, "a region");
  if (!number) return tl::unexpected(number.error());
  Manager& manager = call.service.manager();
  const auto evidence = manager.evidence(RegionId(*number));
  if (!evidence) return tl::unexpected(evidence.error());
  return list(call, *evidence, 0, manager.index());
}

}  // namespace tidepool::api
