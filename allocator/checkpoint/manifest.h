// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint: which tables it has, and for each the file with all rows and those
// with later changes, oldest first. A text of lines that ends with a checksum; the grammar is in
// docs/checkpoint-format.md. Values; pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/checkpoint/checkpoint_format.h"
#include "runtime/base/result.h"

namespace tidepool {

struct ManifestFile {
  SavedRows which = SavedRows::kAll;
  std::string name;
  Bytes size;
  uint64_t checksum = 0;  // that of the footer
  uint64_t rows = 0;      // in the file
};

/// A trainer's own state; see state_file.h.
struct ManifestState {
  std::string name;
  Bytes size;
  uint64_t checksum = 0;
};

struct ManifestTable {
  std::string name;
  RowNumber rows = 0, capacity = 0;
  IdKind ids = IdKind::kDense;
  RowFormat format;
  uint64_t step = 0;
  std::vector<ManifestFile> files;  // the first has all rows
};

struct Manifest {
  uint64_t number = 0;
  CheckpointId id = 0;
  SavedRows which = SavedRows::kAll;
  uint64_t created = 0;  // seconds since 1970
  std::optional<ManifestState> state = std::nullopt;
  std::vector<ManifestTable> tables;

  const ManifestTable* find(std::string_view table) const;
};

std::string manifestText(const Manifest& manifest);
/// Errors: kCorrupt with the line that is wrong, kUnsupported for another version; texts do not
/// name the file.
Result<Manifest> parseManifest(std::string_view text);

/// "float32 adam 64 wide": for people.
std::string formatName(const RowFormat& format);

}  // namespace tidepool
