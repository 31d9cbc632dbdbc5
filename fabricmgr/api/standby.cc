// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/api/standby.h"

#include <fmt/format.h>

#include "fabricmgr/api/problem.h"

namespace tidepool::api {

void Standby::leads(const std::string& name, const std::string& why) {
  const MutexLock lock(mutex_);
  leader_ = name;
  why_ = why;
}

/// The same to everything, so that load balancers, which ask `GET /v1/health`, send nobody here.
void Standby::serve(const std::shared_ptr<Exchange>& exchange) {
  if (exchange->principal.role == Role::kNone) {
    return exchange->reply(problem(Error::make(ErrorCode::kPermission, "%s has no role here",
                                               exchange->principal.name.c_str())));
  }
  std::string text;
  {
    const MutexLock lock(mutex_);
    if (!leader_.empty()) {
      text = fmt::format("this manager stands by, {} leads: ask there", leader_);
    } else {
      text = fmt::format("this manager stands by, and it is not known who leads: ask again{}{}",
                         why_.empty() ? "" : "; ", why_);
    }
  }
  exchange->reply(standingBy(text));  // clients then ask the next one
}

Response Standby::refuse(const Refused& refused) { return problem(refused.why); }

}  // namespace tidepool::api
