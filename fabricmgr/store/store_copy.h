// SPDX-License-Identifier: Apache-2.0
// Moving a fabric's store between a file and etcd, whole and checked. Nobody may have either open.
// Each function opens what it needs; any thread.
#pragma once

#include <string>

#include "fabricmgr/store/etcd_client.h"
#include "fabricmgr/store/store.h"

namespace tidepool::fabric {

struct Moved {
  Standing standing;  // of the new store
  Index index;
  uint64_t audit_records = 0;
  std::string audit_head;  // hash of the last one, in hexadecimal
};

/// Makes the store of the same fabric in etcd out of the file at `path`, reads both, and compares
/// them. The new one's term is above the old one's, which notes that it is superseded: its next
/// manager stays out of the fabric. Errors: kConflict while a manager has one of them open, or when
/// there is a store at `to`; kCorrupt when the audit of the old one is broken, or the new one is
/// not the same (it is then not there); kNotFound, kUnsupported, kNoSpace, and those of EtcdClient.
Result<Moved> moveToEtcd(const std::string& path, const EtcdTarget& to);
/// Likewise, the other way.
Result<Moved> moveToSqlite(const EtcdTarget& from, const std::string& path);

}  // namespace tidepool::fabric
