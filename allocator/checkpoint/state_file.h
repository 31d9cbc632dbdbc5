// SPDX-License-Identifier: Apache-2.0
// A trainer's own state that is kept with a checkpoint, such as its dense parameters: bytes that
// mean nothing here, in a file of their own that the manifest names. Stateless.
#pragma once

#include <string>

#include "allocator/checkpoint/directory.h"
#include "runtime/base/result.h"

namespace tidepool {

/// Everything is on the disk when it returns. Errors: kNoSpace, kPermission, kIo.
Result<ManifestState> writeState(const CheckpointDirectory& directory, uint64_t number,
                                 const std::string& bytes);
/// All of it, checked. Errors: kNotFound, kCorrupt, kIo, naming the file.
Result<std::string> readState(const CheckpointDirectory& directory, const ManifestState& state);

/// The state of checkpoint `number`, 0 for the newest. Errors: as readState(), those of the
/// directory and the manifest, kNotFound if the checkpoint has no state.
Result<std::string> loadState(const std::string& directory, uint64_t number = 0);

}  // namespace tidepool
