// SPDX-License-Identifier: Apache-2.0
// Tiers over what the host's agent gives: a region of the fabric comes in pieces, each of a pool
// file or of a memory server. Free functions, thread-safe; the caller owns the tier.
#pragma once

#include <memory>
#include <span>

#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"
#include "runtime/tier/direct_file_tier.h"
#include "runtime/tier/remote_tier.h"
#include "runtime/transport/agent_client.h"

namespace tidepool {

/// One tier over pieces of pool files, in their order. `files` stay the caller's: the tier has
/// descriptors of its own. Errors: kNoMemory, those of DirectFileTier::overPieces().
Result<std::unique_ptr<DirectFileTier>> tierOverFiles(std::span<const agent_wire::Piece> pieces,
                                                      std::span<const UniqueFd> files,
                                                      uint64_t region);
/// The tier over a piece of a memory server. Errors: those of RemoteTier::attach().
Result<std::unique_ptr<RemoteTier>> tierOverServer(const agent_wire::Piece& piece, uint64_t region,
                                                   Epoch epoch, const Patience& patience);

}  // namespace tidepool
