// SPDX-License-Identifier: Apache-2.0
// The processes that run under Tidepool, and the commands that look at them: stat, ps, top.
#pragma once

#include <string>
#include <vector>

#include "runtime/stats/stats_region.h"
#include "shim/cli/arguments.h"

namespace tidepool::cli {

/// All that this user may look at, by ascending pid. Processes that end meanwhile are left out.
std::vector<StatsView> findProcesses();

std::string statsJson(const StatsView& view);
/// The one operand of a command. Throws UsageError.
int pidOf(const Arguments& arguments, const char* command);

/// Bytes in all tiers that are not local memory.
Bytes farBytes(const StatsPage& page);
/// Local memory that compressed pages take.
Bytes poolBytes(const StatsPage& page);
/// A text of another process, fit for a terminal, cut to `most` bytes.
std::string safeText(std::string_view text, size_t most);

/// Throw UsageError and CommandError.
int stat(const Arguments& arguments);
int ps(const Arguments& arguments);
int top(const Arguments& arguments);

}  // namespace tidepool::cli
