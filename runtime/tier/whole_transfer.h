// SPDX-License-Identifier: Apache-2.0
// Reads and writes of any length through a channel, for those who wait.
#pragma once

#include "runtime/transport/fetch_channel.h"

namespace tidepool {

enum class Transfer : uint8_t { kRead, kWrite };

/// Moves a run, a piece at a time, through a channel with nothing else in flight; blocks until it
/// is done. `memory` has run.count pages and is only read for kWrite. After an error the channel is
/// of no more use, unless it was kCorrupt. Errors: as FetchChannel's, which have no text but their
/// name.
ErrorCode transferAll(FetchChannel& channel, Transfer direction, FrameRun run, std::byte* memory);

}  // namespace tidepool
