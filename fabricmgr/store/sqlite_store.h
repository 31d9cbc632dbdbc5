// SPDX-License-Identifier: Apache-2.0
// The store in one SQLite file: write-ahead log, synchronous FULL, strict tables. One manager at a
// time may have it open. Thread-safe, see store.h.
#pragma once

#include <memory>
#include <string>

#include "fabricmgr/store/store.h"
#include "runtime/base/result.h"

namespace tidepool::fabric {

/// Opens `path`, made if it is not there, and brings its schema up to date. `path`.lock, symbolic
/// links followed, is locked for as long as the store lives. Errors: kConflict when another process
/// has it open, or could, by a hard link, kUnsupported
/// for a schema newer than this program, kCorrupt, kPermission, kIo.
Result<std::unique_ptr<Store>> openSqliteStore(const std::string& path);

}  // namespace tidepool::fabric
