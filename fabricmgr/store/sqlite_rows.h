// SPDX-License-Identifier: Apache-2.0
// Batches to rows and rows to values. Each class prepares its statements once and belongs to one
// thread at a time, as does the database it borrows.
#pragma once

#include <memory>

#include "fabricmgr/model/hash.h"
#include "fabricmgr/store/batch.h"
#include "fabricmgr/store/sqlite.h"
#include "fabricmgr/store/store.h"
#include "fabricmgr/store/store_items.h"

namespace tidepool::fabric {

class RowWriter {
 public:
  /// Reads where the audit ends. Errors: those of SQLite.
  static Result<std::unique_ptr<RowWriter>> make(const Database& database);
  ~RowWriter();

  /// Within the caller's transaction. After an error the writer must be made anew.
  Status write(const Batch& batch);
  /// Likewise, for a store that is moved here: all its things, then what it has beside them, but
  /// for its standing.
  Status put(const StoreItem& item);
  Status finish(const StoreEnds& ends);

 private:
  struct Statements;
  RowWriter();
  Status writeAudit(const Batch& batch);

  std::unique_ptr<Statements> statements_;
  Sha256 hash_;
  uint64_t sequence_ = 0;
  Digest head_{};
};

/// All that Loaded has, in one read transaction of the caller's.
Result<Loaded> readAll(const Database& database);

// For moving the store; nobody writes meanwhile.
Status eachItem(const Database& database, const TakeItem& take);
Result<StoreEnds> endsOf(const Database& database);

// A row of `SELECT *` from the table.
Operation operationOf(const Statement& row);
ScrubEvidence evidenceOf(const Statement& row);
KeyRecord keyOf(const Statement& row);
Event eventOf(const Statement& row);
AuditBase auditBaseOf(const Statement& row);
AuditRecord auditOf(const Statement& row);

}  // namespace tidepool::fabric
