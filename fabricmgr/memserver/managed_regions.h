// SPDX-License-Identifier: Apache-2.0
// The regions that the fabric manager orders on this memory server: carved on demand, opened to the
// holder of a token of one epoch, erased and verified piece by piece. Thread-safe: one request of
// the control protocol at a time.
#pragma once

#include <map>
#include <string>

#include "fabricmgr/device/control_wire.h"
#include "fabricmgr/device/grant_table.h"
#include "fabricmgr/memserver/server.h"
#include "fabricmgr/model/hash.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"

namespace tidepool::memserver {

class ManagedRegions {
 public:
  /// `server` is borrowed. `token_key` makes the tokens that open regions; its manager
  /// is told.
  ManagedRegions(Server& server, std::string token_key)
      : server_(server), token_key_(std::move(token_key)), table_(server.regions().capacity()) {}

  using Done = Result<fabric::control::Answer>;

  /// Carries an order of this fabric's manager out.
  Done handle(const fabric::control::Request& request, const std::string& fabric)
      TP_EXCLUDES(mutex_);
  /// Nothing is anybody's any more. Errors: kRefused while something is.
  Status forgetAll() TP_EXCLUDES(mutex_);

 private:
  /// What is being erased, or was.
  struct Erasure {
    uint64_t scrubbed_to = 0;
    uint64_t verified_to = 0;
    Bytes nonzero;
    Nanoseconds started;
    std::unique_ptr<fabric::Sha256> hash;
  };
  Done letGo(const fabric::Grant& grant) TP_REQUIRES(mutex_);
  Status hold(const fabric::Grant& grant) TP_REQUIRES(mutex_);
  Done attach(fabric::Grant grant, const std::string& fabric) TP_REQUIRES(mutex_);
  Done revoke(fabric::Grant grant) TP_REQUIRES(mutex_);
  Done scrub(const fabric::control::Request& request) TP_REQUIRES(mutex_);
  Done verify(const fabric::control::Request& request) TP_REQUIRES(mutex_);
  Done forget(fabric::RegionId region) TP_REQUIRES(mutex_);
  Status checkPiece(const fabric::control::Request& request, uint64_t begin) TP_REQUIRES(mutex_);
  void drop(fabric::RegionId region) TP_REQUIRES(mutex_);

  Server& server_;
  const std::string token_key_;
  const WallClock wall_clock_;
  Mutex mutex_;
  fabric::GrantTable table_ TP_GUARDED_BY(mutex_);
  std::map<fabric::RegionId, std::shared_ptr<Region>> memory_ TP_GUARDED_BY(mutex_);
  std::map<fabric::RegionId, Erasure> erasures_ TP_GUARDED_BY(mutex_);
};

}  // namespace tidepool::memserver
