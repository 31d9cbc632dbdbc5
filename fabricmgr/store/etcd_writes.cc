// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/store/etcd_writes.h"

#include <algorithm>

#include "fabricmgr/store/batch.h"

namespace tidepool::fabric {
namespace {

/// etcd refuses requests above 1.5 MiB, and, by the way that EtcdTransaction nests them, more than
/// 4,096 operations.
constexpr size_t kMostBytes = 1'000'000;
constexpr size_t kMostOperations = 3000;
constexpr size_t kOverhead = 32;  // of one operation
/// Of one audit record, whose changes may be many.
constexpr size_t kPieceOfAudit = 256 * 1024;

/// One change.
class Writer {
 public:
  explicit Writer(EtcdWrites* to) : to_(*to) {}

  void operator()(const Pool& p) { to_.put(etcdName(kPools, p.id.value()), etcdValue(p)); }
  void operator()(const DropPool& d) { to_.drop(etcdName(kPools, d.id.value())); }
  void operator()(const Device& d) { to_.put(etcdName(kDevices, d.id.value()), etcdValue(d)); }
  void operator()(const DropDevice& d) {
    to_.drop(etcdName(kDevices, d.id.value()));
    to_.drop(labelsName(Subject::kDevice, d.id.value()));
  }
  void operator()(const Host& h) { to_.put(etcdName(kHosts, h.id.value()), etcdValue(h)); }
  void operator()(const DropHost& d) {
    to_.drop(etcdName(kHosts, d.id.value()));
    to_.drop(labelsName(Subject::kHost, d.id.value()));
  }
  void operator()(const Region& r) {
    to_.put(etcdName(kRegions, r.id.value()), etcdValue(r));
    (*this)(SetRegion{r.id, r.host, r.state, r.epoch, r.modified});
  }
  void operator()(const SetRegion& s) {
    to_.put(etcdName(kStates, s.id.value()),
            etcdValue(StateRecord{s.host, s.state, s.epoch, s.modified}));
  }
  void operator()(const DropRegion& d) {
    to_.drop(etcdName(kRegions, d.id.value()));
    to_.drop(etcdName(kStates, d.id.value()));
    to_.drop(labelsName(Subject::kRegion, d.id.value()));
  }
  void operator()(const SetLabels& s) {
    to_.put(labelsName(s.subject, s.id), etcdValue(LabelsRecord{textOf(s.labels), s.modified}));
  }
  void operator()(const Intent& i) {
    to_.put(etcdName(kIntents, i.region.value(), i.device.value()), etcdValue(i));
  }
  void operator()(const DropIntent& d) {
    to_.drop(etcdName(kIntents, d.region.value(), d.device.value()));
  }
  void operator()(const Operation& o) {
    const bool running = o.state == OperationState::kRunning;
    to_.put(etcdName(running ? kRunning : kOperations, o.id.value()), etcdValue(o));
    to_.drop(etcdName(running ? kOperations : kRunning, o.id.value()));
  }
  void operator()(const ScrubEvidence& e) {
    to_.put(etcdName(kEvidence, e.region.value(), e.device.value()), etcdValue(e));
  }
  void operator()(const KeyRecord& k) {
    const std::string name = etcdNameOf(k);
    const bool pending = k.state == KeyRecord::State::kPending;
    to_.put((pending ? kPending : kKeys) + name, etcdValue(k));
    if (pending) return;
    to_.drop(kPending + name);
    to_.put(etcdName(kKeyAges, k.created.value()) + "/" + name, "");
  }
  void operator()(const Event& e) {
    to_.put(etcdName(kEvents, e.index.value(), e.ordinal), etcdValue(e));
  }
  void operator()(const AuditRecord& record) {
    const std::string value = etcdValue(record);
    for (size_t at = 0, piece = 0; at < value.size(); at += kPieceOfAudit) {
      to_.put(etcdName(kAudit, record.sequence, piece++), value.substr(at, kPieceOfAudit));
    }
  }
  void operator()(const DropKeysBefore& d) { to_.old_keys = d.created; }
  void operator()(const DropEventsBefore& d) {
    to_.dropRange(kEvents, etcdName(kEvents, d.index.value()));
    to_.put(kEventsFromKey, std::to_string(d.index.value()));
  }
  void operator()(const DropAudit& d) {
    to_.dropRange(kAudit, etcdName(kAudit, d.to.sequence + 1));
    to_.put(kAuditBaseKey, etcdValue(d.to));
  }

 private:
  static std::string labelsName(Subject subject, uint64_t id) {
    return etcdName(kLabels, static_cast<uint64_t>(subject), id);
  }
  EtcdWrites& to_;
};

}  // namespace

void EtcdWrites::put(std::string key, std::string value) {
  bytes_ += key.size() + value.size() + kOverhead;  // at least: what it replaces stays counted
  keys_.insert_or_assign(std::move(key), std::move(value));
}

void EtcdWrites::drop(const std::string& key) {
  bytes_ += key.size() + kOverhead;
  keys_.insert_or_assign(key, std::nullopt);
}

void EtcdWrites::dropRange(const std::string& from, const std::string& to) {
  bytes_ += from.size() + to.size() + kOverhead;
  keys_.erase(keys_.lower_bound(from), keys_.lower_bound(to));
  ranges_.emplace_back(from, to);
}

void EtcdWrites::add(const Batch& batch, HeadRecord* head) {
  Writer writer(this);
  for (const Change& change : batch.changes) std::visit(writer, change);
  for (const Event& event : batch.events) writer(event);
  const AuditRecord record = nextAudit(batch, {head->sequence, head->hash});
  writer(record);
  *head = {batch.index, record.sequence, record.hash, 0};
}

void EtcdWrites::add(const StoreItem& item) { std::visit(Writer(this), item); }

void EtcdWrites::add(const EtcdWrites& later) {
  for (const auto& [from, to] : later.ranges_) dropRange(from, to);
  for (const auto& [key, value] : later.keys_) value ? put(key, *value) : drop(key);
  old_keys = std::max(old_keys, later.old_keys);
}

bool EtcdWrites::fitsWith(const EtcdWrites& later) const {
  return bytes_ + later.bytes_ <= kMostBytes &&
         keys_.size() + ranges_.size() + later.keys_.size() + later.ranges_.size() <=
             kMostOperations;
}

Result<std::vector<EtcdWrites>> EtcdWrites::pieces() const {
  std::vector<EtcdWrites> pieces(1);
  pieces[0].ranges_ = ranges_;
  for (const auto& [key, value] : keys_) {
    EtcdWrites one;
    value ? one.put(key, *value) : one.drop(key);
    if (!one.fits()) {
      return fail(ErrorCode::kNoSpace, "%.100s is too large for etcd (%zu bytes)", key.c_str(),
                  value->size());
    }
    if (!pieces.back().fitsWith(one)) pieces.emplace_back();
    pieces.back().add(one);
  }
  return pieces;
}

void EtcdWrites::into(EtcdTransaction* transaction, const std::string& prefix) const {
  for (const auto& [from, to] : ranges_) transaction->drop(prefix + from, prefix + to);
  for (const auto& [key, value] : keys_) {
    value ? transaction->put(prefix + key, *value) : transaction->drop(prefix + key);
  }
}

std::string EtcdWrites::text() const {
  EtcdFields fields;
  const auto line = [&fields](std::string what, std::string first, std::string second) {
    fields(what)(first)(second);
  };
  for (const auto& [from, to] : ranges_) line("range", from, to);
  for (const auto& [key, value] : keys_) line(value ? "put" : "drop", key, value.value_or(""));
  return fields.take();
}

Result<EtcdWrites> EtcdWrites::of(std::string_view text) {
  EtcdWrites writes;
  EtcdFields fields(text);
  while (!fields.atEnd()) {
    std::string what, first, second;
    fields(what)(first)(second);
    if (fields.bad()) return fail(ErrorCode::kCorrupt, "a staged change is not of this version");
    if (what == "range") {
      writes.ranges_.emplace_back(first, second);
    } else if (what == "put") {
      writes.put(first, second);
    } else {
      writes.drop(first);
    }
  }
  return writes;
}

}  // namespace tidepool::fabric
