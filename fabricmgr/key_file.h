// SPDX-License-Identifier: Apache-2.0
// Who may read the file of a private key, or of another secret. Stateless; thread-safe.
#pragma once

#include <string>

#include "runtime/base/result.h"

namespace tidepool {

/// Only its owner may read or write a key, and that has to be root or who runs this process; of
/// root's keys their group may read, too, which is how ssl-cert gives them to services. Root itself
/// may use anybody's: it checks configurations of services that run as somebody else. What is not
/// there, or has no name, is left to who opens it. `what` it is stands in messages. Errors:
/// kPermission, with what to do.
Status checkKeyFile(const std::string& path, const char* what = "private key");

}  // namespace tidepool
