// SPDX-License-Identifier: Apache-2.0
// The schema of the store, as numbered steps that are never changed once they were released; each
// is kept in the file with its checksum. Used while the store is opened, by one thread.
#pragma once

#include <span>

#include "fabricmgr/store/sqlite.h"

namespace tidepool::fabric {

struct Migration {
  uint64_t number;
  const char* sql;
};

/// All steps that this version knows, numbered from 1 on.
std::span<const Migration> migrations();

/// What an empty file is taken for.
enum class Empty : uint8_t { kNoStore, kNewStore };

/// Takes the file to the newest schema that is known, in one transaction. Errors: kUnsupported when
/// the file has a newer one, kCorrupt when a step was not the one this version knows, or when the
/// file is another program's, kNotFound when it is empty and that is no store.
Status migrate(const Database& database, Empty empty);

}  // namespace tidepool::fabric
