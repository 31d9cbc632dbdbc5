// SPDX-License-Identifier: Apache-2.0
// The journal: what the manager is about to have a device do, written down before it is asked, and
// struck out together with the outcome. And the answers to requests with idempotency keys. Plain
// values.
#pragma once

#include <string>
#include <string_view>

#include "fabricmgr/model/records.h"
#include "fabricmgr/model/types.h"

namespace tidepool::fabric {

enum class Action : uint8_t {
  kAttach = 1,
  kRevoke = 2,
  kScrub = 3,  // and verify
};
std::string_view nameOf(Action action);

/// There is at most one for a region and device at a time.
struct Intent {
  RegionId region;
  DeviceId device;
  Action action = Action::kAttach;
  Epoch epoch{};
  /// kAttach of a region that will become the end of this one: the grant that grows. 0: none.
  RegionId into;
};

struct KeyRecord {
  std::string actor;
  std::string key;
  Digest request{};  // what was asked, so that another request with the key is noticed
  Nanoseconds created;
  /// kPending: accepted, and the outcome is not known yet.
  enum class State : uint8_t { kPending = 0, kDone = 1, kFailed = 2 } state = State::kPending;
  Index index;
  uint64_t id = 0;
  OperationId operation;
  ErrorCode code{};  // of kFailed
  std::string text;
};

}  // namespace tidepool::fabric
