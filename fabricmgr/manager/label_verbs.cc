// SPDX-License-Identifier: Apache-2.0
// Verbs on labels. Thread-safe, see manager.h.
#include "fabricmgr/manager/impl.h"
#include "fabricmgr/manager/step.h"

namespace tidepool::fabric {
namespace {

Request requestOf(const std::string& verb, const std::string& which, const LabelChange& change) {
  std::string text;  // no value has a comma or an equals sign in it
  for (const auto& [key, value] : change) text += key + (value ? "=" + *value : "-") + ",";
  return Request(verb, which, text);
}

/// `find` gets the state, and returns a pointer to the thing to label, or null.
template <typename Find>
Result<Answer> label(Manager::Impl& manager, const Caller& caller, const Request& request,
                     Subject subject, const LabelChange& change, const Error& missing, Find find) {
  const auto set = [&](Manager::Impl& impl, Step& step) TP_REQUIRES(impl.mutex) -> Result<Answer> {
    const auto* thing = find(impl.state);
    if (thing == nullptr) return tl::unexpected(missing);
    TP_TRY(checkExpected(caller, thing->modified));
    auto labels = applied(thing->labels, change);
    if (!labels) return tl::unexpected(labels.error());
    const uint64_t id = thing->id.value();
    if (isDryRun(caller) || *labels == thing->labels) return Answer{{}, id, {}};
    HostId host;  // whose watchers are told
    if constexpr (requires { thing->host; }) {
      host = thing->host;
    } else if (subject == Subject::kHost) {
      host = HostId(id);
    }
    step.put(SetLabels{subject, id, std::move(*labels), step.index()});
    step.event(subject, id, host, "labelled");
    return Answer{{}, id, {}};
  };
  return manager.perform(caller, request, subject, set);
}

}  // namespace

Result<Answer> Manager::labelDevice(const Caller& caller, const std::string& name,
                                    const LabelChange& change) {
  const auto find = [&](State& state) -> const Device* {
    const DeviceEntry* entry = state.findDevice(name);
    return entry == nullptr ? nullptr : &entry->device;
  };
  return label(*impl_, caller, requestOf("device.set", name, change), Subject::kDevice, change,
               noSuch("device", name).value(), find);
}

Result<Answer> Manager::labelHost(const Caller& caller, const std::string& name,
                                  const LabelChange& change) {
  const auto find = [&](State& state) -> const Host* {
    const HostEntry* entry = state.findHost(name);
    return entry == nullptr ? nullptr : &entry->host;
  };
  return label(*impl_, caller, requestOf("host.set", name, change), Subject::kHost, change,
               noSuch("host", name).value(), find);
}

Result<Answer> Manager::labelRegion(const Caller& caller, RegionId region,
                                    const LabelChange& change) {
  const auto find = [&](State& state) -> const Region* {
    const RegionEntry* entry = state.findRegion(region);
    return entry == nullptr ? nullptr : &entry->region;
  };
  return label(*impl_, caller, requestOf("region.set", std::to_string(region.value()), change),
               Subject::kRegion, change, noSuchRegion(region).value(), find);
}

}  // namespace tidepool::fabric
