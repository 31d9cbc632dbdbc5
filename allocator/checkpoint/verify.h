// SPDX-License-Identifier: Apache-2.0
// Reads a checkpoint through and says what of it is whole. Changes nothing, needs no tables.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "allocator/checkpoint/manifest.h"
#include "allocator/table/workers.h"
#include "runtime/base/result.h"

namespace tidepool {

struct CheckpointReport {
  uint64_t number = 0;
  std::optional<Manifest> manifest;   // nothing if it cannot be read
  std::vector<std::string> problems;  // none: it can be restored
  uint64_t rows = 0;                  // that were read
  Bytes bytes;
};

/// Reads every file of the checkpoint; 0 is the newest. Errors: kNotFound (no such directory, or no
/// checkpoint in it), kPermission, kIo on the directory; all else is in the report.
Result<CheckpointReport> verifyCheckpoint(const std::string& directory, Workers& workers,
                                          uint64_t number = 0);
/// What is in the directory, oldest first, from the manifests alone.
Result<std::vector<CheckpointReport>> listCheckpoints(const std::string& directory);

}  // namespace tidepool
