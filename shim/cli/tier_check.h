// SPDX-License-Identifier: Apache-2.0
// Is a far tier there? Asked before a program starts (`run`) and by `doctor`. Changes nothing; a
// remote host is given two seconds.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/options.h"

namespace tidepool::cli {

struct TierReport {
  std::string detail;   // "reachable in 0.2 ms"
  std::string warning;  // empty, or one line on what may go wrong
};

/// Errors name the tier and what to do next: kNotFound, kPermission, kUnreachable, kTimedOut,
/// kInvalidArgument (too large), kUnsupported. `options` say where the host's agent is.
Result<TierReport> checkTier(const FarSpec& spec, const Options& options);

/// The commands that stop the kernel from moving pages between nodes; empty if it does not.
std::string kernelTieringMend();

/// The spec as the user would write it, with sizes for people: "cxl:2.00G".
std::string specText(const FarSpec& spec);

/// Connects to HOST:PORT (IPv6 in brackets) and closes again. Errors: kUnreachable, kTimedOut.
Status tryConnect(const std::string& target, Nanoseconds timeout);

}  // namespace tidepool::cli
