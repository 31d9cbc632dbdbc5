// SPDX-License-Identifier: Apache-2.0
// From the manager's JSON to values. What is missing or of another type is refused: an agent that
// guessed could hand out somebody else's bytes.
#include "fabricmgr/agent/region_access.h"

namespace tidepool::agent {
namespace {

using api::JsonValue;

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

Result<AccessPart> partIn(const JsonValue& given) {
  TP_TRY(checkFields(given, {"device_id"}, {"class", "address", "token"}));
  if (!hasKind(given, "extents", JsonValue::Kind::kArray)) return notAsDescribed("extents");
  AccessPart part;
  const auto memory_class = fabric::memoryClassOf(given.text("class"));
  if (!memory_class || given.text("address").empty()) return notAsDescribed("class");
  part.memory_class = *memory_class;
  part.address = given.text("address");
  part.token = given.text("token");
  for (const JsonValue& one : given.list("extents")) {
    TP_TRY(checkFields(one, {"device_id", "offset_bytes", "length_bytes"}, {}));
    const fabric::Extent extent{fabric::DeviceId(one.count("device_id")), one.count("offset_bytes"),
                                Bytes(one.count("length_bytes"))};
    if (extent.length == Bytes() || extent.offset > UINT64_MAX - extent.length.value()) {
      return notAsDescribed("length_bytes");
    }
    part.extents.push_back(extent);
  }
  if (part.extents.empty()) return notAsDescribed("extents");
  return part;
}

}  // namespace

Result<uint64_t> addRegions(const JsonValue& page, std::vector<SeenRegion>* regions) {
  TP_TRY(checkFields(page, {"next", "index"}, {}));
  if (!hasKind(page, "items", JsonValue::Kind::kArray)) return notAsDescribed("items");
  for (const JsonValue& one : page.list("items")) {
    TP_TRY(checkFields(one, {"id", "epoch", "size_bytes"}, {"label", "state"}));
    const auto state = fabric::regionStateOf(one.text("state"));
    if (!state || one.count("id") == 0) return notAsDescribed("state");
    regions->push_back({one.count("id"), one.text("label"), *state, Epoch(one.count("epoch")),
                        Bytes(one.count("size_bytes"))});
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
  Bytes sum;
  for (const JsonValue& given : body.list("parts")) {
    auto part = partIn(given);
    if (!part) return tl::unexpected(part.error());
    sum += fabric::sumOf(part->extents);
    access.parts.push_back(std::move(*part));
  }
  if (access.parts.empty() || sum != access.size) return notAsDescribed("size_bytes");
  return access;
}

}  // namespace tidepool::agent
