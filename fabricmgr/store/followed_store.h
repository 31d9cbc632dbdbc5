// SPDX-License-Identifier: Apache-2.0
// A store that another manager writes, seen by one that only reads it. Thread-safe, see store.h;
// load() and next() belong to one thread.
#pragma once

#include <optional>
#include <vector>

#include "fabricmgr/store/store.h"

namespace tidepool::fabric {

/// What has been written: of each thing its last word. A device, host or region without labels
/// keeps those that it has. The order of the changes means nothing.
struct News {
  Index index;
  std::vector<Change> changes;
};

class FollowedStore : public Store {
 public:
  /// What has been written since load(), or since what the last call returned, after a wait of at
  /// most `wait` for it; nothing: nothing has. Errors: kStaleEpoch when it is not known any more
  /// what has: load() anew; kCorrupt; those of the store, after which it may be called again.
  virtual Result<std::optional<News>> next(Nanoseconds wait) = 0;
  /// What was loaded, or the news, of this index are part of what is shown: durable(), and what is
  /// read from the store itself, are as of it from now on.
  virtual void reached(Index index) = 0;
  /// As whose the store was last seen.
  virtual Standing standing() = 0;
  /// For how long it has not been known that durable() is the latest index.
  virtual Nanoseconds age() = 0;

  // Nothing is written here.
  Result<Standing> beginTerm(Term) override { return refused(); }
  Status tookOver() override { return refused(); }
  Status noteSuperseded(Term) override { return refused(); }
  void listen(std::function<void(Index)>) override {}
  void append(Batch) override {}
  Status await(Index index) override { return index <= durable() ? Status() : refused(); }
  bool elects() const override { return true; }
  Status mayAct() override { return refused(); }

 private:
  static tl::unexpected<Error> refused() {
    return fail(ErrorCode::kConflict, "this manager stands by: it changes nothing");
  }
};

}  // namespace tidepool::fabric
