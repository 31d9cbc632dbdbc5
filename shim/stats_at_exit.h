// SPDX-License-Identifier: Apache-2.0
// The statistics file that `stats_file` asks for, written once as the process ends.
#pragma once

namespace tidepool {

/// Called from _exit, _Exit, quick_exit and our destructor; only the first call acts, and only in
/// the process that started the runtime. Must not allocate from managed memory; errno may change.
void writeStatsAtExit();

}  // namespace tidepool
