// SPDX-License-Identifier: Apache-2.0
// Batches to rows. Belongs to the store's writing thread.
#include <string_view>

#include "fabricmgr/store/sqlite_rows.h"

namespace tidepool::fabric {
namespace {

template <typename Value>
uint64_t numberOf(Value value) {
  return static_cast<uint64_t>(value);
}

/// A statement that is prepared when it is first needed.
class Lazy {
 public:
  Lazy(const Database& database, const char* sql) : database_(database), sql_(sql) {}

  template <typename... Values>
  Status run(const Values&... values) {
    if (!prepared_) {
      auto statement = database_.prepare(sql_);
      if (!statement) return tl::unexpected(statement.error());
      statement_ = std::move(*statement);
      prepared_ = true;
    }
    return statement_.run(values...);
  }

 private:
  const Database& database_;
  const char* const sql_;
  Statement statement_;
  bool prepared_ = false;
};

constexpr char kPutPool[] =
    "INSERT INTO pools VALUES(?,?,?,?) ON CONFLICT(id) DO UPDATE SET name=excluded.name, "
    "class=excluded.class, modified=excluded.modified";
constexpr char kPutDevice[] =
    "INSERT INTO devices VALUES(?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT(id) DO UPDATE SET "
    "state=excluded.state, modified=excluded.modified";
constexpr char kPutHost[] =
    "INSERT INTO hosts VALUES(?,?,?,?,?,?) ON CONFLICT(id) DO UPDATE SET state=excluded.state, "
    "lease=excluded.lease, modified=excluded.modified";
constexpr char kPutRegion[] =
    "INSERT INTO regions VALUES(?,?,nullif(?,0),?,?,?,?) ON CONFLICT(id) DO UPDATE SET "
    "name=excluded.name, host=excluded.host, state=excluded.state, epoch=excluded.epoch, "
    "modified=excluded.modified";
constexpr char kSetRegion[] =
    "UPDATE regions SET host=nullif(?2,0), state=?3, epoch=?4, modified=?5 WHERE id=?1";
constexpr char kPutOperation[] =
    "INSERT INTO operations VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT(id) DO UPDATE SET "
    "state=excluded.state, total=excluded.total, text=excluded.text, deadline=excluded.deadline, "
    "finished=excluded.finished, modified=excluded.modified";
constexpr char kPutKey[] = "INSERT OR REPLACE INTO keys VALUES(?,?,?,?,?,?,?,?,?,?)";
constexpr char kDropKeys[] =
    "DELETE FROM keys WHERE (actor, key) IN "
    "(SELECT actor, key FROM keys WHERE created < ? AND state != 0 LIMIT 50000)";

}  // namespace

struct RowWriter::Statements {
  explicit Statements(const Database& database) : database_(database) {}

  Status operator()(const Pool& p) {
    return put_pool.run(p.id.value(), p.name, numberOf(p.memory_class), p.modified.value());
  }
  Status operator()(const DropPool& d) { return drop_pool.run(d.id.value()); }
  Status operator()(const Device& d) {
    return put_device.run(d.id.value(), d.pool.value(), d.name, numberOf(d.memory_class), d.address,
                          d.capacity.value(), d.granularity.value(), uint64_t{d.heads}, d.domain,
                          numberOf(d.state), d.modified.value());
  }
  Status operator()(const DropDevice& d) { return drop_device.run(d.id.value()); }
  Status operator()(const Host& h) {
    return put_host.run(h.id.value(), h.name, h.domain, numberOf(h.state), h.lease.value(),
                        h.modified.value());
  }
  Status operator()(const DropHost& d) { return drop_host.run(d.id.value()); }
  Status operator()(const Region& r) {
    TP_TRY(put_region.run(r.id.value(), r.name, r.host.value(), numberOf(r.state), r.epoch.value(),
                          r.created.value(), r.modified.value()));
    TP_TRY(drop_extents.run(r.id.value()));
    uint64_t ordinal = 0;
    for (const Extent& e : r.extents) {
      TP_TRY(put_extent.run(r.id.value(), ordinal++, e.device.value(), e.offset, e.length.value()));
    }
    return {};
  }
  Status operator()(const SetRegion& s) {
    return set_region.run(s.id.value(), s.host.value(), numberOf(s.state), s.epoch.value(),
                          s.modified.value());
  }
  Status operator()(const DropRegion& d) {
    TP_TRY(drop_extents.run(d.id.value()));
    return drop_region.run(d.id.value());
  }
  Status operator()(const SetLabels& s) {
    Lazy& touch = s.subject == Subject::kDevice ? touch_device
                  : s.subject == Subject::kHost ? touch_host
                                                : touch_region;
    TP_TRY(touch.run(s.id, s.modified.value()));
    if (s.labels.empty()) return drop_labels.run(numberOf(s.subject), s.id);
    return put_labels.run(numberOf(s.subject), s.id, textOf(s.labels));
  }
  Status operator()(const Intent& i) {
    return put_intent.run(i.region.value(), i.device.value(), numberOf(i.action), i.epoch.value(),
                          i.into.value());
  }
  Status operator()(const DropIntent& d) {
    return drop_intent.run(d.region.value(), d.device.value());
  }
  Status operator()(const Operation& o) {
    return put_operation.run(o.id.value(), numberOf(o.kind), numberOf(o.state), o.region.value(),
                             o.host.value(), o.total.value(), o.text, o.actor, o.deadline.value(),
                             o.started.value(), o.finished.value(), o.modified.value(),
                             o.target.value());
  }
  Status operator()(const ScrubEvidence& e) {
    return put_evidence.run(e.region.value(), e.device.value(), e.epoch.value(), e.bytes.value(),
                            uint64_t{e.passes}, e.nonzero.value(), e.digest, e.started.value(),
                            e.finished.value());
  }
  Status operator()(const KeyRecord& k) {
    return put_key.run(k.actor, k.key, std::span<const uint8_t>(k.request), k.created.value(),
                       numberOf(k.state), k.index.value(), k.id, k.operation.value(),
                       numberOf(k.code), k.text);
  }
  Status operator()(const Event& e) {
    return put_event.run(e.index.value(), uint64_t{e.ordinal}, e.time.value(), numberOf(e.subject),
                         e.id, e.host.value(), e.what, e.from, e.to);
  }
  Status operator()(const AuditRecord& r) {
    return put_audit.run(r.sequence, r.index.value(), r.time.value(), r.actor, r.verb,
                         numberOf(r.subject), r.id, r.outcome, r.changes,
                         std::span<const uint8_t>(r.previous), std::span<const uint8_t>(r.hash));
  }
  Status operator()(const DropKeysBefore& d) { return drop_keys.run(d.created.value()); }
  Status operator()(const DropEventsBefore& d) {
    TP_TRY(drop_events.run(d.index.value()));
    return events_dropped.run(d.index.value());
  }
  Status operator()(const DropAudit& d) {
    TP_TRY(set_audit_base.run(d.to.sequence, std::span<const uint8_t>(d.to.hash)));
    return drop_audit.run(d.to.sequence);
  }

 private:
  friend class RowWriter;
  const Database& database_;
  Lazy put_pool{database_, kPutPool};
  Lazy drop_pool{database_, "DELETE FROM pools WHERE id=?"};
  Lazy put_device{database_, kPutDevice};
  Lazy drop_device{database_, "DELETE FROM devices WHERE id=?"};
  Lazy put_host{database_, kPutHost};
  Lazy drop_host{database_, "DELETE FROM hosts WHERE id=?"};
  Lazy put_region{database_, kPutRegion};
  Lazy set_region{database_, kSetRegion};
  Lazy drop_region{database_, "DELETE FROM regions WHERE id=?"};
  Lazy touch_device{database_, "UPDATE devices SET modified=?2 WHERE id=?1"};
  Lazy touch_host{database_, "UPDATE hosts SET modified=?2 WHERE id=?1"};
  Lazy touch_region{database_, "UPDATE regions SET modified=?2 WHERE id=?1"};
  Lazy put_labels{database_, "INSERT OR REPLACE INTO labels VALUES(?,?,?)"};
  Lazy drop_labels{database_, "DELETE FROM labels WHERE subject=? AND id=?"};
  Lazy put_extent{database_, "INSERT INTO extents VALUES(?,?,?,?,?)"};
  Lazy drop_extents{database_, "DELETE FROM extents WHERE region=?"};
  Lazy put_intent{database_, "INSERT OR REPLACE INTO intents VALUES(?,?,?,?,?)"};
  Lazy drop_intent{database_, "DELETE FROM intents WHERE region=? AND device=?"};
  Lazy put_operation{database_, kPutOperation};
  Lazy put_evidence{database_, "INSERT OR REPLACE INTO evidence VALUES(?,?,?,?,?,?,?,?,?)"};
  Lazy put_key{database_, kPutKey};
  Lazy drop_keys{database_, kDropKeys};
  Lazy drop_events{database_, "DELETE FROM events WHERE idx < ?"};
  Lazy events_dropped{database_, "UPDATE meta SET value=? WHERE name='events_dropped_to'"};
  Lazy put_event{database_, "INSERT INTO events VALUES(?,?,?,?,?,?,?,?,?)"};
  Lazy set_audit_base{database_, "UPDATE audit_base SET sequence=?, hash=?"};
  Lazy drop_audit{database_, "DELETE FROM audit WHERE sequence <= ?"};
  Lazy put_audit{database_, "INSERT INTO audit VALUES(?,?,?,?,?,?,?,?,?,?,?)"};
  Lazy set_index{database_, "UPDATE meta SET value=? WHERE name='index'"};
};

RowWriter::RowWriter() = default;
RowWriter::~RowWriter() = default;

Result<std::unique_ptr<RowWriter>> RowWriter::make(const Database& database) {
  std::unique_ptr<RowWriter> writer(new RowWriter);
  writer->statements_ = std::make_unique<Statements>(database);
  auto last = database.prepare("SELECT * FROM audit ORDER BY sequence DESC LIMIT 1");
  if (!last) return tl::unexpected(last.error());
  const auto row = last->step();
  if (!row) return tl::unexpected(row.error());
  if (*row) {
    const AuditRecord record = auditOf(*last);
    writer->sequence_ = record.sequence;
    writer->head_ = record.hash;
  }
  return writer;
}

Status RowWriter::write(const Batch& batch) {
  for (const Change& change : batch.changes) TP_TRY(std::visit(*statements_, change));
  for (const Event& event : batch.events) TP_TRY((*statements_)(event));
  TP_TRY(writeAudit(batch));
  return statements_->set_index.run(batch.index.value());
}

Status RowWriter::put(const StoreItem& item) { return std::visit(*statements_, item); }

Status RowWriter::finish(const StoreEnds& ends) {
  if (ends.audit_base.sequence != 0) {  // the triggers want to see the record, and it go
    AuditRecord last;
    last.sequence = ends.audit_base.sequence;
    last.hash = ends.audit_base.hash;
    TP_TRY((*statements_)(last));
    TP_TRY((*statements_)(DropAudit{ends.audit_base}));
  }
  TP_TRY(statements_->events_dropped.run(ends.events_from.value()));
  return statements_->set_index.run(ends.index.value());
}

Status RowWriter::writeAudit(const Batch& batch) {
  const AuditRecord record = nextAudit(batch, {sequence_, head_});
  TP_TRY((*statements_)(record));
  sequence_ = record.sequence;
  head_ = record.hash;
  return {};
}

}  // namespace tidepool::fabric
