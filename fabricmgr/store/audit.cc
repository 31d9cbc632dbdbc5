// SPDX-License-Identifier: Apache-2.0
// The chain of audit records: how one is hashed, and how all are checked. Stateless.
#include "fabricmgr/model/hash.h"
#include "fabricmgr/store/store.h"

namespace tidepool::fabric {
namespace {

constexpr uint32_t kAtOnce = 1000;

/// The newest line of a removal in `changes`, if there is one, goes to `line`.
void noteRemoval(const std::string& changes, std::string* line) {
  if (changes.starts_with("drop-audit ")) *line = changes.substr(0, changes.find('\n') + 1);
}

/// From `base` on.
Result<AuditVerdict> verifyFrom(Store& store, const AuditBase& base) {
  AuditVerdict verdict;
  verdict.removed = base.sequence;
  verdict.head = base.hash;
  const auto bad = [&](uint64_t sequence, const char* wrong) {
    verdict.first_bad = sequence;
    verdict.text = wrong;
    return verdict;
  };
  std::string removal;
  for (bool more = true; more;) {
    const auto records = store.auditAfter(base.sequence + verdict.records, kAtOnce);
    if (!records) return tl::unexpected(records.error());
    for (const AuditRecord& record : *records) {
      const char* wrong = nullptr;
      if (record.sequence != base.sequence + verdict.records + 1) {
        wrong = "a record is missing before it";
      }
      if (record.previous != verdict.head) wrong = "it does not follow the record before it";
      if (auditHash(record) != record.hash) wrong = "it was changed after it was written";
      if (wrong != nullptr) return bad(record.sequence, wrong);
      noteRemoval(record.changes, &removal);
      verdict.head = record.hash;
      ++verdict.records;
    }
    more = records->size() == kAtOnce;
  }
  if (removal == (base.sequence == 0 ? "" : describe(base))) return verdict;
  return bad(base.sequence + 1, "the records before it were removed, and none says so");
}

}  // namespace

AuditRecord nextAudit(const Batch& batch, const AuditBase& last) {
  AuditRecord record;
  record.sequence = last.sequence + 1;
  record.index = batch.index;
  record.time = batch.time;
  record.actor = batch.actor;
  record.verb = batch.verb;
  record.subject = batch.subject;
  record.id = batch.id;
  record.outcome = batch.outcome;
  record.changes = describe(batch.changes);
  record.previous = last.hash;
  record.hash = auditHash(record);
  return record;
}

Digest auditHash(const AuditRecord& record) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(record.previous)));
  hash.addField(record.sequence);
  hash.addField(record.index.value());
  hash.addField(record.time.value());
  hash.addField(record.actor);
  hash.addField(record.verb);
  hash.addField(static_cast<uint64_t>(record.subject));
  hash.addField(record.id);
  hash.addField(record.outcome);
  hash.addField(record.changes);
  return hash.finish();
}

Result<AuditVerdict> verifyAudit(Store& store) {
  auto base = store.auditBase();
  for (;;) {
    if (!base) return tl::unexpected(base.error());
    auto verdict = verifyFrom(store, *base);
    // Old records may have been removed meanwhile.
    const auto now = store.auditBase();
    if (now && *now == *base) return verdict;
    base = now;
  }
}

}  // namespace tidepool::fabric
