// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/agent/fabric_pin.h"

namespace tidepool::agent {

Status FabricPin::judge(const client::Reply& reply) const {
  if (known_.id.empty()) return {};
  if (reply.fabric.empty()) {
    return fail(ErrorCode::kUnreachable,
                "what answers does not say that it is the manager of this host's fabric, %.36s: is "
                "it an older fabricmgr?",
                known_.id.c_str());
  }
  if (reply.fabric != known_.id) {
    return fail(
        ErrorCode::kUnreachable,
        "fabric %.36s answers, and this host is of %.36s: start the right manager, or leave "
        "that: end this agent, `fabricmgr agent --forget-fabric`",
        reply.fabric.c_str(), known_.id.c_str());
  }
  if (reply.term >= known_.term) return {};
  return fail(ErrorCode::kUnreachable,
              "a manager of term %llu answers, and one of term %llu has been in charge since: "
              "`fabricmgr health` says more",
              static_cast<unsigned long long>(reply.term),
              static_cast<unsigned long long>(known_.term));
}

Status FabricPin::check(const client::Reply& reply) {
  if (!reply.error.empty()) return {};  // there was no answer
  const MutexLock lock(mutex_);
  TP_TRY(judge(reply));
  // Whoever refuses this host is not known to be its manager.
  const bool first = known_.id.empty();
  if (reply.fabric.empty() || (first && reply.status / 100 != 2)) return {};
  if (!first && reply.term == known_.term) return {};
  known_ = {reply.fabric, reply.term};
  changed_(known_);
  return {};
}

}  // namespace tidepool::agent
