// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/store/etcd_records.h"

#include <fmt/format.h>

namespace tidepool::fabric {

std::string etcdName(std::string_view table, uint64_t id) {
  return fmt::format("{}{:016x}", table, id);
}

std::string etcdName(std::string_view table, uint64_t first, uint64_t second) {
  return fmt::format("{}{:016x}/{:016x}", table, first, second);
}

std::string etcdNameOf(const KeyRecord& key) { return key.actor + '\0' + key.key; }

std::string etcdEnd(std::string_view table) {
  std::string end(table);
  ++end.back();
  return end;
}

void EtcdFields::write(std::string_view field) {
  fmt::format_to(std::back_inserter(text_), "{}:{},", field.size(), field);
}

void EtcdFields::read(std::string* field) {
  if (rest_.empty() || bad_) return;
  size_t length = 0;
  const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), length);
  const auto digits = static_cast<size_t>(end - rest_.data());
  bad_ = error != std::errc() || rest_.size() < digits + 2 || length > rest_.size() - digits - 2 ||
         rest_[digits] != ':' || rest_[digits + 1 + length] != ',';
  if (bad_) return;
  *field = rest_.substr(digits + 1, length);
  rest_.remove_prefix(digits + length + 2);
}

uint64_t EtcdFields::numberOf(const std::string& text) {
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  if (!text.empty() &&
      std::from_chars(text.data(), end, number) != std::from_chars_result{end, std::errc()}) {
    bad_ = true;
  }
  return number;
}

void fieldsOf(EtcdFields& of, FabricRecord& r) {
  of(r.schema)(r.standing.fabric)(r.standing.term)(r.standing.outbids)(r.standing.superseded_by);
}
void fieldsOf(EtcdFields& of, HeadRecord& r) { of(r.index)(r.sequence)(r.hash)(r.staged); }
void fieldsOf(EtcdFields& of, StateRecord& r) { of(r.host)(r.state)(r.epoch)(r.modified); }
void fieldsOf(EtcdFields& of, LabelsRecord& r) { of(r.text)(r.modified); }
void fieldsOf(EtcdFields& of, Pool& p) { of(p.id)(p.name)(p.memory_class)(p.modified); }
void fieldsOf(EtcdFields& of, Device& d) {
  of(d.id)(d.pool)(d.name)(d.memory_class)(d.address)(d.capacity)(d.granularity)(d.heads);
  of(d.domain)(d.state)(d.modified);
}
void fieldsOf(EtcdFields& of, Host& h) { of(h.id)(h.name)(h.domain)(h.state)(h.lease)(h.modified); }

void fieldsOf(EtcdFields& of, Region& r) {
  of(r.id)(r.name)(r.created);
  if (!of.reading()) {
    for (Extent& e : r.extents) of(e.device)(e.offset)(e.length);
    return;
  }
  while (!of.atEnd() && !of.bad()) {
    Extent& e = r.extents.emplace_back();
    of(e.device)(e.offset)(e.length);
    r.size += e.length;
  }
}

void fieldsOf(EtcdFields& of, Intent& i) { of(i.region)(i.device)(i.action)(i.epoch)(i.into); }
void fieldsOf(EtcdFields& of, Operation& o) {
  of(o.id)(o.kind)(o.state)(o.region)(o.host)(o.total)(o.text)(o.actor)(o.deadline);
  of(o.started)(o.finished)(o.modified)(o.target);
}
void fieldsOf(EtcdFields& of, ScrubEvidence& e) {
  of(e.region)(e.device)(e.epoch)(e.bytes)(e.passes)(e.nonzero)(e.digest)(e.started)(e.finished);
}
void fieldsOf(EtcdFields& of, KeyRecord& k) {
  of(k.actor)(k.key)(k.request)(k.created)(k.state)(k.index)(k.id)(k.operation)(k.code)(k.text);
}
void fieldsOf(EtcdFields& of, Event& e) {
  of(e.index)(e.ordinal)(e.time)(e.subject)(e.id)(e.host)(e.what)(e.from)(e.to);
}
void fieldsOf(EtcdFields& of, AuditRecord& r) {
  of(r.sequence)(r.index)(r.time)(r.actor)(r.verb)(r.subject)(r.id)(r.outcome)(r.changes);
  of(r.previous)(r.hash);
}
void fieldsOf(EtcdFields& of, AuditBase& b) { of(b.sequence)(b.hash); }

}  // namespace tidepool::fabric
