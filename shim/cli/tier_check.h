// SPDX-License-Identifier: Apache-2.0
// Is a far tier there? Asked before a program starts (`run`) and by `doctor`. Changes nothing; a
// remote host is given two seconds.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/options.h"
#include "runtime/tier/far_kind.h"

namespace tidepool::cli {

/// FarKind::check(). `options` say where the host's agent is.
Result<TierReport> checkTier(const FarSpec& spec, const Options& options, CheckDepth depth);

/// The spec as the user would write it, with sizes for people: "cxl:2.00G".
std::string specText(const FarSpec& spec);

}  // namespace tidepool::cli
