// SPDX-License-Identifier: Apache-2.0
// What a client may ask of a memory server, as requests of the protocol. Whatever a server would
// refuse as malformed, and end the connection for, is refused here, before anything is sent. Pure
// functions; thread-safe. Offsets and lengths are bytes within the region; the epoch is the
// sender's to add. Errors of all: kInvalidArgument.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/transport/wire.h"

namespace tidepool {

/// kRead or kWrite of a run of whole pages. `most`: bytes that the server takes at once.
Result<wire::Request> runRequest(wire::Opcode opcode, uint64_t tag, Bytes offset, size_t bytes,
                                 uint32_t most);
/// Of whole pages, below 4 GiB.
Result<wire::Request> discardRequest(uint64_t tag, Bytes offset, Bytes length);
/// kReadRows or kWriteRows of `rows` of `row` bytes each, `bytes` in all; their offsets follow the
/// header.
Result<wire::Request> rowsRequest(wire::Opcode opcode, uint64_t tag, size_t rows, Bytes row,
                                  size_t bytes);

}  // namespace tidepool
