// SPDX-License-Identifier: Apache-2.0
// The store in one SQLite file: write-ahead log, synchronous FULL, strict tables. One manager at a
// time may have it open. Thread-safe, see store.h; what is a function stands alone.
#pragma once

#include <memory>
#include <string>

#include "fabricmgr/store/store.h"
#include "runtime/base/result.h"

namespace tidepool::fabric {

/// Opens `path` and brings its schema up to date. `path`.lock, symbolic links followed, is locked
/// for as long as the store lives. Errors: kNotFound when there is none (nothing is made then,
/// since an empty store in the place of one whose disk is not mounted would take every host for
/// removed), kConflict when another process has it open, or could, by a hard link, kUnsupported for
/// a schema newer than this program, kCorrupt, kPermission, kIo.
Result<std::unique_ptr<Store>> openSqliteStore(const std::string& path);

/// Makes the store of a new fabric, whole or not at all. The file belongs to whom its folder
/// belongs, so that root can make it for the service. Errors: kConflict when there is one already,
/// or a log that one has left behind; kNotFound without its folder; kPermission, kIo.
Result<Standing> initSqliteStore(const std::string& path);

}  // namespace tidepool::fabric
