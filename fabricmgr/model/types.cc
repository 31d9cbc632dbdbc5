// SPDX-License-Identifier: Apache-2.0
// Names of the model's values, and the checks of names that users give. Stateless.
#include "fabricmgr/model/types.h"

#include <array>

#include "fabricmgr/model/journal.h"
#include "fabricmgr/model/records.h"

namespace tidepool::fabric {
namespace {

constexpr std::array<std::string_view, kRegionStates> kStateNames = {
    "free", "reserved", "attached", "draining", "dirty", "scrubbing", "lost", "fenced"};
constexpr std::array<std::string_view, kRegionEvents> kEventNames = {
    "reserve", "attach", "cancel",     "drain",    "resume", "fence",
    "detach",  "scrub",  "scrub-fail", "scrubbed", "lose",   "write-off"};
constexpr std::array<std::string_view, 3> kClassNames = {"any", "cxl", "remote"};
constexpr std::array<std::string_view, 2> kDeviceNames = {"online", "cordoned"};
constexpr std::array<std::string_view, 3> kHostNames = {"active", "draining", "fenced"};
constexpr std::array<std::string_view, 9> kOperationNames = {
    "none", "assign", "release", "drain", "fence", "host-drain", "host-fence", "transfer", "move"};
constexpr std::array<std::string_view, 4> kOperationStateNames = {"running", "done", "failed",
                                                                  "cancelled"};
constexpr std::array<std::string_view, 4> kActionNames = {"none", "attach", "revoke", "scrub"};
constexpr std::array<std::string_view, 6> kSubjectNames = {"none", "pool",   "device",
                                                           "host", "region", "operation"};

template <typename Names, typename Value>
constexpr std::string_view nameIn(const Names& names, Value value) {
  const auto at = static_cast<size_t>(value);
  return at < names.size() ? names[at] : "unknown";
}

template <typename Value, typename Names>
std::optional<Value> valueIn(const Names& names, std::string_view name) {
  for (size_t at = 0; at < names.size(); ++at) {
    if (names[at] == name) return static_cast<Value>(at);
  }
  return std::nullopt;
}

constexpr bool alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

std::string_view nameOf(RegionState state) { return nameIn(kStateNames, state); }
std::string_view nameOf(RegionEvent event) { return nameIn(kEventNames, event); }
std::string_view nameOf(MemoryClass value) { return nameIn(kClassNames, value); }
std::string_view nameOf(DeviceState value) { return nameIn(kDeviceNames, value); }
std::string_view nameOf(HostState value) { return nameIn(kHostNames, value); }
std::string_view nameOf(OperationKind value) { return nameIn(kOperationNames, value); }
std::string_view nameOf(OperationState value) { return nameIn(kOperationStateNames, value); }
std::string_view nameOf(Action action) { return nameIn(kActionNames, action); }
std::string_view nameOf(Subject subject) { return nameIn(kSubjectNames, subject); }

std::optional<RegionState> regionStateOf(std::string_view name) {
  return valueIn<RegionState>(kStateNames, name);
}
std::optional<MemoryClass> memoryClassOf(std::string_view name) {
  return valueIn<MemoryClass>(kClassNames, name);
}

Status checkName(std::string_view what, std::string_view name) {
  constexpr size_t kLongest = 63;
  bool good = !name.empty() && name.size() <= kLongest && alphanumeric(name[0]);
  for (const char c : name) good = good && (alphanumeric(c) || c == '.' || c == '_' || c == '-');
  if (good) return {};
  return fail(ErrorCode::kInvalidArgument,
              "%.*s: a name has 1 to 63 of a-z A-Z 0-9 . _ - and begins with a letter or digit",
              static_cast<int>(what.size()), what.data());
}

Status checkLabel(std::string_view label) {
  return label.empty() ? Status() : checkName("label", label);
}

Bytes sumOf(const std::vector<Extent>& extents) {
  Bytes sum;
  for (const Extent& extent : extents) sum += extent.length;
  return sum;
}

}  // namespace tidepool::fabric
