// SPDX-License-Identifier: Apache-2.0
// The chain of audit records: how one is hashed, and how all are checked. Stateless.
#include "fabricmgr/model/hash.h"
#include "fabricmgr/store/store.h"

namespace tidepool::fabric {

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
  constexpr uint32_t kAtOnce = 1000;
  AuditVerdict verdict;
  for (;;) {
    const auto records = store.auditAfter(verdict.records, kAtOnce);
    if (!records) return tl::unexpected(records.error());
    for (const AuditRecord& record : *records) {
      const char* wrong = nullptr;
      if (record.sequence != verdict.records + 1) wrong = "a record is missing before it";
      if (record.previous != verdict.head) wrong = "it does not follow the record before it";
      if (auditHash(record) != record.hash) wrong = "it was changed after it was written";
      if (wrong != nullptr) {
        verdict.first_bad = record.sequence;
        verdict.text = wrong;
        return verdict;
      }
      verdict.head = record.hash;
      ++verdict.records;
    }
    if (records->size() < kAtOnce) return verdict;
  }
}

}  // namespace tidepool::fabric
