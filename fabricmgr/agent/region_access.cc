// SPDX-License-Identifier: Apache-2.0
// From the manager's JSON to values. What is missing or of another type is refused: an agent that
// guessed could hand out somebody else's bytes.
#include "fabricmgr/agent/region_access.h"

#include <map>
#include <utility>

namespace tidepool::agent {
namespace {

using api::JsonValue;

constexpr uint64_t kMillisecond = 1'000'000;  // in nanoseconds

tl::unexpected<Error> notAsDescribed(const char* what) {
  return fail(ErrorCode::kCorrupt,
              "the manager's answer has no good '%s': is it of another version?", what);
}

bool hasKind(const JsonValue& object, const char* name, JsonValue::Kind kind) {
  const JsonValue* found = object.find(name);
  return found != nullptr && found->kind == kind;
}

Status checkFields(const JsonValue& object, std::initializer_list<const char*> counts,
                   std::initializer_list<const char*> texts) {
  for (const char* name : counts) {
    if (!hasKind(object, name, JsonValue::Kind::kNumber)) return notAsDescribed(name);
  }
  for (const char* name : texts) {
    if (!hasKind(object, name, JsonValue::Kind::kString)) return notAsDescribed(name);
  }
  return {};
}

Result<std::vector<fabric::Extent>> extentsIn(const JsonValue& given) {
  if (!hasKind(given, "extents", JsonValue::Kind::kArray)) return notAsDescribed("extents");
  std::vector<fabric::Extent> extents;
  for (const JsonValue& one : given.list("extents")) {
    TP_TRY(checkFields(one, {"device_id", "offset_bytes", "length_bytes"}, {}));
    const fabric::Extent extent{fabric::DeviceId(one.count("device_id")), one.count("offset_bytes"),
                                Bytes(one.count("length_bytes"))};
    if (extent.length == Bytes() || extent.offset > UINT64_MAX - extent.length.value()) {
      return notAsDescribed("length_bytes");
    }
    extents.push_back(extent);
  }
  if (extents.empty()) return notAsDescribed("extents");
  return extents;
}

Result<AccessPart> partIn(const JsonValue& given) {
  TP_TRY(checkFields(given, {"device_id"}, {"class", "address", "token"}));
  AccessPart part;
  part.device = fabric::DeviceId(given.count("device_id"));
  const auto memory_class = fabric::memoryClassOf(given.text("class"));
  if (!memory_class || given.text("address").empty()) return notAsDescribed("class");
  part.memory_class = *memory_class;
  part.address = given.text("address");
  part.token = given.text("token");
  auto extents = extentsIn(given);
  if (!extents) return tl::unexpected(extents.error());
  part.extents = std::move(*extents);
  return part;
}

/// Whether the parts are the region's extents, sorted by device, and nothing else.
bool makeUp(const std::vector<AccessPart>& parts, const std::vector<fabric::Extent>& extents) {
  std::map<fabric::DeviceId, std::vector<fabric::Extent>> by_device;
  for (const fabric::Extent& extent : extents) by_device[extent.device].push_back(extent);
  for (const AccessPart& part : parts) {
    const auto found = by_device.find(part.device);
    if (found == by_device.end() || found->second != part.extents) return false;
    by_device.erase(found);
  }
  return by_device.empty();
}

}  // namespace

Result<uint64_t> addRegions(const JsonValue& page, std::vector<SeenRegion>* regions) {
  TP_TRY(checkFields(page, {"next", "index"}, {}));
  if (!hasKind(page, "items", JsonValue::Kind::kArray)) return notAsDescribed("items");
  for (const JsonValue& one : page.list("items")) {
    TP_TRY(checkFields(one, {"id", "epoch", "size_bytes", "drain_left_ms"}, {"label", "state"}));
    const auto state = fabric::regionStateOf(one.text("state"));
    if (!state || one.count("id") == 0) return notAsDescribed("state");
    regions->push_back({one.count("id"), one.text("label"), *state, Epoch(one.count("epoch")),
                        Bytes(one.count("size_bytes")), one.count("replaces"),
                        Nanoseconds(one.count("drain_left_ms") * kMillisecond)});
  }
  return page.count("next");
}

Result<RegionAccess> accessIn(const JsonValue& body) {
  TP_TRY(checkFields(body, {"region", "epoch", "size_bytes"}, {}));
  if (!hasKind(body, "parts", JsonValue::Kind::kArray)) return notAsDescribed("parts");
  RegionAccess access;
  access.region = body.count("region");
  access.epoch = Epoch(body.count("epoch"));
  access.size = Bytes(body.count("size_bytes"));
  auto extents = extentsIn(body);
  if (!extents) return tl::unexpected(extents.error());
  access.extents = std::move(*extents);
  for (const JsonValue& given : body.list("parts")) {
    auto part = partIn(given);
    if (!part) return tl::unexpected(part.error());
    access.parts.push_back(std::move(*part));
  }
  if (fabric::sumOf(access.extents) != access.size) return notAsDescribed("size_bytes");
  if (!makeUp(access.parts, access.extents)) return notAsDescribed("parts");
  return access;
}

}  // namespace tidepool::agent
