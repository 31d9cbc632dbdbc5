// SPDX-License-Identifier: Apache-2.0
// The manager's things as JSON, field by field in the order of schemas.cc.
#include "fabricmgr/api/render.h"

#include <ctime>

#include "fabricmgr/model/hash.h"

namespace tidepool::api {
namespace {

uint64_t milliseconds(Nanoseconds time) { return time.value() / 1'000'000; }
/// Where 0 means something else than a time that is nearly over.
uint64_t millisecondsUp(Nanoseconds time) { return (time.value() + 999'999) / 1'000'000; }

/// Of the thing with this id; empty if it is gone, or there is none.
template <typename Id>
std::string_view nameIn(const std::map<Id, std::string>& names, Id id) {
  const auto found = names.find(id);
  return found == names.end() ? std::string_view() : found->second;
}

void collectDevices(const std::vector<fabric::Extent>& list, fabric::Names* names) {
  for (const fabric::Extent& extent : list) names->devices.try_emplace(extent.device);
}

std::string_view subjectOf(const fabric::Event& event, const fabric::Names& names) {
  switch (event.subject) {
    case fabric::Subject::kPool:
      return nameIn(names.pools, fabric::PoolId(event.id));
    case fabric::Subject::kDevice:
      return nameIn(names.devices, fabric::DeviceId(event.id));
    case fabric::Subject::kHost:
      return nameIn(names.hosts, fabric::HostId(event.id));
    default:
      return "";
  }
}

void extents(JsonWriter& out, const std::vector<fabric::Extent>& list, const fabric::Names& names) {
  out.beginList("extents");
  for (const fabric::Extent& extent : list) {
    out.beginObject()
        .field("device_id", extent.device.value())
        .field("device", nameIn(names.devices, extent.device))
        .field("offset_bytes", extent.offset)
        .field("length_bytes", extent.length.value())
        .endObject();
  }
  out.endList();
}

void labels(JsonWriter& out, const fabric::Labels& labels) {
  out.beginObject("labels");
  for (const auto& [key, value] : labels) out.field(key, value);
  out.endObject();
}

}  // namespace

std::string timeText(Nanoseconds since_1970) {
  if (since_1970.value() == 0) return "";
  const auto seconds = static_cast<std::time_t>(since_1970.value() / 1'000'000'000);
  const auto thousandths = static_cast<unsigned>(since_1970.value() / 1'000'000 % 1000);
  std::tm parts = {};
  gmtime_r(&seconds, &parts);
  char text[48];
  const size_t used = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return std::string(text, used) + "." + std::to_string(1000 + thousandths).substr(1) + "Z";
}

void collect(const fabric::RegionInfo& info, fabric::Names* names) {
  collectDevices(info.region.extents, names);
}

void collect(const fabric::Operation& operation, fabric::Names* names) {
  names->hosts.try_emplace(operation.host);
}

void collect(const fabric::ScrubEvidence& evidence, fabric::Names* names) {
  names->devices.try_emplace(evidence.device);
}

void collect(const fabric::Event& event, fabric::Names* names) {
  names->hosts.try_emplace(event.host);
  if (event.subject == fabric::Subject::kPool) names->pools.try_emplace(fabric::PoolId(event.id));
  if (event.subject == fabric::Subject::kDevice) {
    names->devices.try_emplace(fabric::DeviceId(event.id));
  }
  if (event.subject == fabric::Subject::kHost) names->hosts.try_emplace(fabric::HostId(event.id));
}

void collect(const fabric::Plan& plan, fabric::Names* names) {
  collectDevices(plan.extents, names);
}

void collect(const fabric::RegionAccess& access, fabric::Names* names) {
  collectDevices(access.extents, names);
}

void render(JsonWriter& out, const fabric::PoolInfo& info) {
  out.beginObject()
      .field("id", info.pool.id.value())
      .field("name", info.pool.name)
      .field("class", nameOf(info.pool.memory_class))
      .field("devices", info.devices)
      .field("capacity_bytes", info.capacity.value())
      .field("free_bytes", info.free.value())
      .field("modified", info.pool.modified.value())
      .endObject();
}

void render(JsonWriter& out, const fabric::DeviceInfo& info) {
  const fabric::Device& device = info.device;
  out.beginObject()
      .field("id", device.id.value())
      .field("name", device.name)
      .field("pool", info.pool)
      .field("class", nameOf(device.memory_class))
      .field("address", device.address)
      .field("domain", device.domain)
      .field("state", nameOf(device.state))
      .field("health", nameOf(info.health))
      .field("trouble", info.trouble)
      .field("capacity_bytes", device.capacity.value())
      .field("free_bytes", info.free.value())
      .field("largest_free_bytes", info.largest_free.value())
      .field("granularity_bytes", device.granularity.value())
      .field("heads", device.heads)
      .field("hosts", info.hosts)
      .field("regions", info.regions)
      .field("modified", device.modified.value());
  labels(out, device.labels);
  out.endObject();
}

void render(JsonWriter& out, const fabric::HostInfo& info) {
  out.beginObject()
      .field("id", info.host.id.value())
      .field("name", info.host.name)
      .field("domain", info.host.domain)
      .field("state", nameOf(info.host.state))
      .field("lease_ms", milliseconds(info.host.lease));
  if (info.lease_left) out.field("lease_left_ms", milliseconds(*info.lease_left));
  out.field("regions", info.regions)
      .field("held_bytes", info.held.value())
      .field("modified", info.host.modified.value());
  labels(out, info.host.labels);
  out.endObject();
}

void render(JsonWriter& out, const fabric::ResumedHosts& resumed) {
  out.beginObject().field("index", resumed.index.value()).beginList("hosts");
  for (const fabric::ResumedHost& host : resumed.hosts) {
    out.beginObject()
        .field("id", host.id.value())
        .field("name", host.name)
        .field("outcome", nameOf(host.outcome))
        .field("text", host.text)
        .endObject();
  }
  out.endList().endObject();
}

void render(JsonWriter& out, const fabric::RegionInfo& info, const fabric::Names& names) {
  const fabric::Region& region = info.region;
  out.beginObject()
      .field("id", region.id.value())
      .field("label", region.name)
      .field("host", info.host)
      .field("state", nameOf(region.state))
      .field("epoch", region.epoch.value())
      .field("size_bytes", region.size.value());
  extents(out, region.extents, names);
  out.field("operation", info.operation.value()).field("replaces", info.replaces.value());
  if (info.lease_left) out.field("lease_left_ms", milliseconds(*info.lease_left));
  if (info.drain_left) out.field("drain_left_ms", millisecondsUp(*info.drain_left));
  out.field("created", timeText(region.created)).field("modified", region.modified.value());
  labels(out, region.labels);
  out.endObject();
}

void render(JsonWriter& out, const fabric::Operation& operation, const fabric::Names& names) {
  out.beginObject()
      .field("id", operation.id.value())
      .field("kind", nameOf(operation.kind))
      .field("state", nameOf(operation.state))
      .field("region", operation.region.value())
      .field("host_id", operation.host.value())
      .field("host", nameIn(names.hosts, operation.host))
      .field("target", operation.target.value())
      .field("done_bytes", operation.done.value())
      .field("total_bytes", operation.total.value())
      .field("text", operation.text)
      .field("actor", operation.actor)
      .field("deadline", timeText(operation.deadline))
      .field("started", timeText(operation.started))
      .field("finished", timeText(operation.finished))
      .field("modified", operation.modified.value())
      .endObject();
}

void render(JsonWriter& out, const fabric::ScrubEvidence& evidence, const fabric::Names& names) {
  out.beginObject()
      .field("region", evidence.region.value())
      .field("device_id", evidence.device.value())
      .field("device", nameIn(names.devices, evidence.device))
      .field("epoch", evidence.epoch.value())
      .field("bytes", evidence.bytes.value())
      .field("passes", evidence.passes)
      .field("nonzero_bytes", evidence.nonzero.value())
      .field("sha256", evidence.digest)
      .field("started", timeText(evidence.started))
      .field("finished", timeText(evidence.finished))
      .endObject();
}

void render(JsonWriter& out, const fabric::Event& event, const fabric::Names& names) {
  out.beginObject()
      .field("index", event.index.value())
      .field("ordinal", event.ordinal)
      .field("time", timeText(event.time))
      .field("subject", nameOf(event.subject))
      .field("id", event.id)
      .field("subject_name", subjectOf(event, names))
      .field("host_id", event.host.value())
      .field("host", nameIn(names.hosts, event.host))
      .field("what", event.what)
      .field("from", event.from)
      .field("to", event.to)
      .endObject();
}

void render(JsonWriter& out, const fabric::AuditRecord& record) {
  out.beginObject()
      .field("sequence", record.sequence)
      .field("index", record.index.value())
      .field("time", timeText(record.time))
      .field("time_ns", record.time.value())
      .field("actor", record.actor)
      .field("verb", record.verb)
      .field("subject", nameOf(record.subject))
      .field("id", record.id)
      .field("outcome", record.outcome)
      .field("previous", fabric::hexOf(record.previous))
      .field("hash", fabric::hexOf(record.hash))
      .field("changes", record.changes)
      .endObject();
}

void render(JsonWriter& out, const fabric::AuditVerdict& verdict) {
  out.beginObject()
      .field("good", verdict.first_bad == 0)
      .field("records", verdict.records)
      .field("removed", verdict.removed)
      .field("first_bad", verdict.first_bad)
      .field("text", verdict.text)
      .field("head", fabric::hexOf(verdict.head))
      .endObject();
}

void render(JsonWriter& out, const fabric::RemovalReport& report) {
  out.beginObject()
      .field("safe", report.safe)
      .field("text", report.text)
      .field("regions", report.regions)
      .field("hosts", report.hosts)
      .field("bytes", report.bytes.value())
      .beginList("hurt");
  for (const fabric::Hurt& hurt : report.hurt) {
    out.beginObject()
        .field("region", hurt.region.value())
        .field("host", hurt.host)
        .field("state", nameOf(hurt.state))
        .field("bytes", hurt.bytes.value())
        .endObject();
  }
  out.endList().endObject();
}

void render(JsonWriter& out, const fabric::Plan& plan, const fabric::Names& names) {
  out.beginObject().field("index", plan.index.value());
  extents(out, plan.extents, names);
  out.endObject();
}

void render(JsonWriter& out, const fabric::RegionAccess& access, const fabric::Names& names) {
  out.beginObject()
      .field("region", access.region.value())
      .field("epoch", access.epoch.value())
      .field("size_bytes", access.size.value());
  extents(out, access.extents, names);
  out.beginList("parts");
  for (const fabric::Access& part : access.parts) {
    out.beginObject()
        .field("device_id", part.device.value())
        .field("device", nameIn(names.devices, part.device))
        .field("class", nameOf(part.memory_class))
        .field("address", part.address);
    extents(out, part.extents, names);
    out.field("token", part.token).endObject();
  }
  out.endList().endObject();
}

void render(JsonWriter& out, const fabric::Answer& answer) {
  out.beginObject()
      .field("index", answer.index.value())
      .field("id", answer.id)
      .field("operation", answer.operation.value())
      .endObject();
}

void render(JsonWriter& out, const fabric::Manager::Renewal& renewal) {
  out.beginObject()
      .field("lease_left_ms", milliseconds(renewal.lease_left))
      .field("modified", renewal.modified.value())
      .endObject();
}

}  // namespace tidepool::api
