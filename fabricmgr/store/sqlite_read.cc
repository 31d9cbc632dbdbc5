// SPDX-License-Identifier: Apache-2.0
// Rows to values. Columns are in the order of the schema in migrations.cc.
#include <algorithm>
#include <unordered_map>

#include "fabricmgr/store/sqlite_rows.h"
#include "fabricmgr/store/standing.h"

namespace tidepool::fabric {
namespace {

Digest digestOf(std::span<const uint8_t> bytes) {
  Digest digest{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), digest.size()), digest.begin());
  return digest;
}

Pool poolOf(const Statement& row) {
  return {PoolId(row.number(0)), std::string(row.text(1)), static_cast<MemoryClass>(row.number(2)),
          Index(row.number(3))};
}

Device deviceOf(const Statement& row) {
  Device device;
  device.id = DeviceId(row.number(0));
  device.pool = PoolId(row.number(1));
  device.name = row.text(2);
  device.memory_class = static_cast<MemoryClass>(row.number(3));
  device.address = row.text(4);
  device.capacity = Bytes(row.number(5));
  device.granularity = Bytes(row.number(6));
  device.heads = static_cast<uint32_t>(row.number(7));
  device.domain = row.text(8);
  device.state = static_cast<DeviceState>(row.number(9));
  device.modified = Index(row.number(10));
  return device;
}

Host hostOf(const Statement& row) {
  return {HostId(row.number(0)),
          std::string(row.text(1)),
          std::string(row.text(2)),
          static_cast<HostState>(row.number(3)),
          Nanoseconds(row.number(4)),
          Index(row.number(5)),
          {}};
}

Region regionOf(const Statement& row) {
  Region region;
  region.id = RegionId(row.number(0));
  region.name = row.text(1);
  region.host = HostId(row.number(2));
  region.state = static_cast<RegionState>(row.number(3));
  region.epoch = Epoch(row.number(4));
  region.created = Nanoseconds(row.number(5));
  region.modified = Index(row.number(6));
  return region;
}

Intent intentOf(const Statement& row) {
  return {RegionId(row.number(0)), DeviceId(row.number(1)), static_cast<Action>(row.number(2)),
          Epoch(row.number(3)), RegionId(row.number(4))};
}

template <typename Value>
Status readTable(const Database& database, const char* sql, Value (*read)(const Statement&),
                 std::vector<Value>* out) {
  auto rows = database.prepare(sql);
  if (!rows) return tl::unexpected(rows.error());
  for (;;) {
    const auto row = rows->step();
    if (!row) return tl::unexpected(row.error());
    if (!*row) return {};
    out->push_back(read(*rows));
  }
}

/// Both lists are in the order of the regions' ids.
Status readExtents(const Database& database, std::vector<Region>* regions) {
  auto rows = database.prepare("SELECT * FROM extents ORDER BY region, ordinal");
  if (!rows) return tl::unexpected(rows.error());
  auto region = regions->begin();
  for (;;) {
    const auto row = rows->step();
    if (!row) return tl::unexpected(row.error());
    if (!*row) return {};
    const RegionId id(rows->number(0));
    while (region != regions->end() && region->id < id) ++region;
    if (region == regions->end() || region->id != id) {
      return fail(ErrorCode::kCorrupt, "the store has an extent of region %llu, which is not there",
                  static_cast<unsigned long long>(id.value()));
    }
    region->extents.push_back({DeviceId(rows->number(2)), rows->number(3), Bytes(rows->number(4))});
    region->size += region->extents.back().length;
  }
}

/// To whom labels belong; null if it is not there.
template <typename Thing>
Labels* labelsOf(std::vector<Thing>* things, uint64_t id) {
  const auto at = std::lower_bound(
      things->begin(), things->end(), id,
      [](const Thing& thing, uint64_t wanted) { return thing.id.value() < wanted; });
  return at != things->end() && at->id.value() == id ? &at->labels : nullptr;
}

/// All lists are in the order of their ids.
Status readLabels(const Database& database, Loaded* loaded) {
  auto rows = database.prepare("SELECT subject, id, labels FROM labels");
  if (!rows) return tl::unexpected(rows.error());
  for (;;) {
    const auto row = rows->step();
    if (!row) return tl::unexpected(row.error());
    if (!*row) return {};
    const auto subject = static_cast<Subject>(rows->number(0));
    const uint64_t id = rows->number(1);
    Labels* const into = subject == Subject::kDevice ? labelsOf(&loaded->devices, id)
                         : subject == Subject::kHost ? labelsOf(&loaded->hosts, id)
                                                     : labelsOf(&loaded->regions, id);
    auto labels = labelsIn(rows->text(2));
    if (!labels) return tl::unexpected(labels.error());
    if (into == nullptr) {
      return fail(ErrorCode::kCorrupt, "the store has labels of %llu, which is not there",
                  static_cast<unsigned long long>(id));
    }
    *into = std::move(*labels);
  }
}

}  // namespace

Operation operationOf(const Statement& row) {
  Operation operation;
  operation.id = OperationId(row.number(0));
  operation.kind = static_cast<OperationKind>(row.number(1));
  operation.state = static_cast<OperationState>(row.number(2));
  operation.region = RegionId(row.number(3));
  operation.host = HostId(row.number(4));
  operation.total = Bytes(row.number(5));
  operation.text = row.text(6);
  operation.actor = row.text(7);
  operation.deadline = Nanoseconds(row.number(8));
  operation.started = Nanoseconds(row.number(9));
  operation.finished = Nanoseconds(row.number(10));
  operation.modified = Index(row.number(11));
  operation.target = RegionId(row.number(12));
  return operation;
}

ScrubEvidence evidenceOf(const Statement& row) {
  ScrubEvidence evidence;
  evidence.region = RegionId(row.number(0));
  evidence.device = DeviceId(row.number(1));
  evidence.epoch = Epoch(row.number(2));
  evidence.bytes = Bytes(row.number(3));
  evidence.passes = static_cast<uint32_t>(row.number(4));
  evidence.nonzero = Bytes(row.number(5));
  evidence.digest = row.text(6);
  evidence.started = Nanoseconds(row.number(7));
  evidence.finished = Nanoseconds(row.number(8));
  return evidence;
}

KeyRecord keyOf(const Statement& row) {
  KeyRecord record;
  record.actor = row.text(0);
  record.key = row.text(1);
  record.request = digestOf(row.blob(2));
  record.created = Nanoseconds(row.number(3));
  record.state = static_cast<KeyRecord::State>(row.number(4));
  record.index = Index(row.number(5));
  record.id = row.number(6);
  record.operation = OperationId(row.number(7));
  record.code = static_cast<ErrorCode>(row.number(8));
  record.text = row.text(9);
  return record;
}

Event eventOf(const Statement& row) {
  Event event;
  event.index = Index(row.number(0));
  event.ordinal = static_cast<uint32_t>(row.number(1));
  event.time = Nanoseconds(row.number(2));
  event.subject = static_cast<Subject>(row.number(3));
  event.id = row.number(4);
  event.host = HostId(row.number(5));
  event.what = row.text(6);
  event.from = row.text(7);
  event.to = row.text(8);
  return event;
}

AuditBase auditBaseOf(const Statement& row) { return {row.number(0), digestOf(row.blob(1))}; }

AuditRecord auditOf(const Statement& row) {
  AuditRecord record;
  record.sequence = row.number(0);
  record.index = Index(row.number(1));
  record.time = Nanoseconds(row.number(2));
  record.actor = row.text(3);
  record.verb = row.text(4);
  record.subject = static_cast<Subject>(row.number(5));
  record.id = row.number(6);
  record.outcome = row.text(7);
  record.changes = row.text(8);
  record.previous = digestOf(row.blob(9));
  record.hash = digestOf(row.blob(10));
  return record;
}

namespace {

template <typename Value, typename Take>
Status eachRow(const Database& database, const char* sql, Value (*read)(const Statement&),
               const Take& take) {
  auto rows = database.prepare(sql);
  if (!rows) return tl::unexpected(rows.error());
  for (;;) {
    const auto row = rows->step();
    if (!row) return tl::unexpected(row.error());
    if (!*row) return {};
    TP_TRY(take(read(*rows)));
  }
}

Result<uint64_t> numberIn(const Database& database, const char* sql) {
  auto row = database.prepare(sql);
  if (!row) return tl::unexpected(row.error());
  const auto there = row->step();
  if (!there) return tl::unexpected(there.error());
  return *there ? row->number(0) : 0;
}

}  // namespace

Status eachItem(const Database& database, const TakeItem& take) {
  const auto loaded = readAll(database);
  if (!loaded) return tl::unexpected(loaded.error());
  TP_TRY(eachOf(*loaded, take));
  TP_TRY(eachRow(database, "SELECT * FROM operations", operationOf, take));
  TP_TRY(eachRow(database, "SELECT * FROM evidence", evidenceOf, take));
  TP_TRY(eachRow(database, "SELECT * FROM keys", keyOf, take));
  TP_TRY(eachRow(database, "SELECT * FROM events", eventOf, take));
  return eachRow(database, "SELECT * FROM audit ORDER BY sequence", auditOf, take);
}

Result<StoreEnds> endsOf(const Database& database) {
  StoreEnds ends;
  const auto standing = readStanding(database);
  if (!standing) return tl::unexpected(standing.error());
  ends.standing = *standing;
  const auto index = numberIn(database, "SELECT value FROM meta WHERE name='index'");
  if (!index) return tl::unexpected(index.error());
  ends.index = Index(*index);
  const auto from = numberIn(database, "SELECT value FROM meta WHERE name='events_dropped_to'");
  if (!from) return tl::unexpected(from.error());
  ends.events_from = Index(*from);
  TP_TRY(eachRow(database, "SELECT sequence, hash FROM audit_base", auditBaseOf,
                 [&ends](const AuditBase& base) { return ends.audit_base = base, Status(); }));
  return ends;
}

Result<Loaded> readAll(const Database& database) {
  Loaded loaded;
  auto index = database.prepare("SELECT value FROM meta WHERE name='index'");
  if (!index) return tl::unexpected(index.error());
  const auto row = index->step();
  if (!row) return tl::unexpected(row.error());
  if (!*row) return fail(ErrorCode::kCorrupt, "the store has no index");
  loaded.index = Index(index->number(0));
  index->reset();
  TP_TRY(readTable(database, "SELECT * FROM pools ORDER BY id", poolOf, &loaded.pools));
  TP_TRY(readTable(database, "SELECT * FROM devices ORDER BY id", deviceOf, &loaded.devices));
  TP_TRY(readTable(database, "SELECT * FROM hosts ORDER BY id", hostOf, &loaded.hosts));
  TP_TRY(readTable(database, "SELECT * FROM regions ORDER BY id", regionOf, &loaded.regions));
  TP_TRY(readExtents(database, &loaded.regions));
  TP_TRY(readLabels(database, &loaded));
  TP_TRY(readTable(database, "SELECT * FROM intents", intentOf, &loaded.intents));
  TP_TRY(readTable(database, "SELECT * FROM operations WHERE state = 0 ORDER BY id", operationOf,
                   &loaded.running));
  TP_TRY(readTable(database, "SELECT * FROM keys WHERE state = 0", keyOf, &loaded.pending));
  return loaded;
}

}  // namespace tidepool::fabric
