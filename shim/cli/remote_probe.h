// SPDX-License-Identifier: Apache-2.0
// How pages would travel to a memory server, found out by reading one: for `doctor`. The server
// lends one page for that time. Not thread-safe.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/options.h"

namespace tidepool::cli {

struct RemoteProbe {
  std::string transport;  // "verbs" or "tcp"
  std::string note;       // why it is not verbs; empty if it is, or is not wanted
  Nanoseconds round_trip;
};

/// Errors: as RemoteTier::open(), within `timeout` for each step.
Result<RemoteProbe> probeRemote(const FarSpec& spec, Nanoseconds timeout);

}  // namespace tidepool::cli
