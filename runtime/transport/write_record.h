// SPDX-License-Identifier: Apache-2.0
// Where a client of a memory server notes that it has writes under way, and on which connection. If
// nobody waits for their end any more, others can then have the server end that connection before
// they use the same memory. A record is its client's, and has that one's thread.
#pragma once

#include <cstdint>

namespace tidepool {

class WriteRecord {
 public:
  virtual ~WriteRecord() = default;
  /// Before the first write is sent, and before more are sent on another connection: its number;
  /// 0: it has none.
  virtual void begin(uint32_t connection) = 0;
  /// All have been answered.
  virtual void end() = 0;
  /// Some have not been, and nobody waits for that: the server may carry them out yet.
  virtual void giveUp() = 0;
};

}  // namespace tidepool
