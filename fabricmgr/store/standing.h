// SPDX-License-Identifier: Apache-2.0
// The row that says whose state a file has. For the store and for what makes, saves or replaces
// its file. A database belongs to one thread at a time.
#pragma once

#include "fabricmgr/store/sqlite.h"
#include "fabricmgr/store/store.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::fabric {

// Errors of all: kCorrupt when there is no such row, or it has no UUID; those of SQLite.
Result<Standing> readStanding(const Database& database);
/// The term becomes one more than the higher of its own and `known`.
Result<Standing> raiseTerm(const Database& database, Term known);
/// Likewise, and the next manager is to outbid what devices know.
Result<Standing> raiseTermToOutbid(const Database& database, Term known);

/// Of a store that is moved here.
Status writeStanding(const Database& database, const Standing& standing);

/// The one name of a store's file: its lock and its log are called after that. Errors: kNotFound;
/// kConflict when it has others, by which somebody else may have it open; kPermission, kIo.
Result<std::string> oneNameOf(const std::string& path);
/// Held while the store is open. Errors: kConflict when another process
/// has it; kPermission, kIo.
Result<UniqueFd> lockStore(const std::string& path);

/// Whatever lies at this store's path, or was left of one there: "the store", "its log"; null if
/// there is nothing.
const char* remainsAt(const std::string& path);
/// The folder's entries are durable after this. Errors: kIo.
Status syncFolderOf(const std::string& path);
/// The file becomes its folder's owner's, if it can.
void giveToOwnerOfFolder(const std::string& path);

}  // namespace tidepool::fabric
