// SPDX-License-Identifier: Apache-2.0
// Saving a store's file and putting one back. Each function opens what it needs; any thread.
#pragma once

#include <string>

#include "fabricmgr/store/store.h"
#include "runtime/base/result.h"

namespace tidepool::fabric {

/// Copies the store at `path`, as of one change, into the new file `to`, which only its owner may
/// read. A manager may have it open, and goes on. What the copy says of itself. Errors: kNotFound,
/// kConflict when there is something at `to`, kCorrupt, kPermission, kNoSpace, kIo.
Result<Standing> backUpStore(const std::string& path, const std::string& to);

struct Restored {
  Standing standing;
  Index index;
  std::string replaced;  // where the store lies now that was there before; empty: there was none
};

/// Puts the backup `from` in the place of the store at `path`, whole or not at all; that one is
/// kept beside it. The next manager's term, and the ids that it gives, are above those of both, and
/// it outbids what devices know, if no manager of theirs is alive. `now` (of the wall clock) is for
/// the name of what was replaced. Errors: kConflict while a manager has the store open, kNotFound,
/// kCorrupt (also of another program's file), kUnsupported for a newer fabricmgr's, kPermission,
/// kNoSpace, kIo.
Result<Restored> restoreStore(const std::string& path, const std::string& from, Nanoseconds now);

}  // namespace tidepool::fabric
