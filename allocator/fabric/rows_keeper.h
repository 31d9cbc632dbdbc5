// SPDX-License-Identifier: Apache-2.0
// What the memory of the fabric asks of those who use it and pay for it. Interfaces alone.
#pragma once

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool {

/// Who looks rows up and changes them: a table. Called by the pool's thread.
class RowsKeeper {
 public:
  virtual ~RowsKeeper() = default;
  /// Keeps everybody off the rows until letGo(), with no read or write of them under way. False: it
  /// did not come to that in some ten milliseconds.
  virtual bool hold() = 0;
  virtual void letGo() = 0;
};

/// Local memory for rows that have nowhere else to go. Thread-safe; calls may take table locks.
class LocalRoom {
 public:
  virtual ~LocalRoom() = default;
  /// Errors: kNoSpace, kConflict when the budget has no room for that now.
  virtual Status take(Bytes size) = 0;
  virtual void giveBack(Bytes size) = 0;
};

}  // namespace tidepool
