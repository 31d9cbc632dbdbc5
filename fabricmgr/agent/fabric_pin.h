// SPDX-License-Identifier: Apache-2.0
// Which fabric this host belongs to: the first that answered, and the newest term of its manager
// that was heard of. What another one says is no answer: an empty store that was started in the
// place of the right one knows no host, and must not end anybody's programs. Thread-safe.
#pragma once

#include <functional>
#include <string>

#include "fabricmgr/agent/journal.h"
#include "fabricmgr/client/http_client.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"

namespace tidepool::agent {

class FabricPin {
 public:
  /// `changed` is called from any thread, before whoever asked gets its answer.
  FabricPin(Journal::Fabric known, std::function<void(const Journal::Fabric&)> changed)
      : changed_(std::move(changed)), known_(std::move(known)) {}

  /// Whether the answer is this fabric's, from a manager no older than the newest one known.
  /// Errors: kUnreachable.
  Status check(const client::Reply& reply) TP_EXCLUDES(mutex_);

 private:
  Status judge(const client::Reply& reply) const TP_REQUIRES(mutex_);

  const std::function<void(const Journal::Fabric&)> changed_;
  Mutex mutex_;
  Journal::Fabric known_ TP_GUARDED_BY(mutex_);
};

}  // namespace tidepool::agent
