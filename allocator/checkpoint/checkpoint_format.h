// SPDX-License-Identifier: Apache-2.0
// The bytes of a file of rows, as docs/checkpoint-format.md describes them: a header, blocks of
// rows, a footer. All numbers little-endian; checksums are XXH3 with 64 bits. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "allocator/rows/row_format.h"
#include "allocator/rows/row_numbers.h"
#include "allocator/table/row_changes.h"
#include "allocator/table/table.h"
#include "runtime/base/result.h"

namespace tidepool {

/// The second has what removed ids leave behind, and uses of rows; it is written for tables that
/// have either alone.
inline constexpr uint32_t kCheckpointVersion = 1, kNewestCheckpointVersion = 2;

/// What a file's header says of the table and the checkpoint.
struct RowFileHeader {
  static constexpr size_t kBytes = 512;
  static constexpr size_t kMostName = 255;

  uint64_t number = 0;  // of the checkpoint that the file was written for
  CheckpointId id = 0;
  SavedRows which = SavedRows::kAll;
  std::string table;  // its name
  RowNumber rows = 0, capacity = 0;
  RowNumber free = 0;  // of `rows`, those that no id has
  Tracked tracked = Tracked::kNothing;
  uint64_t step = 0;
  IdKind ids = IdKind::kDense;
  RowFormat format;
  Initializer initializer;
  OptimizerStep rates;
};

/// Rows that follow one another: `count` from `first` on.
struct RowRange {
  RowNumber first = 0;
  uint64_t count = 0;

  static constexpr uint64_t kMostCount = (uint64_t{1} << kSlotBits) - 1;
  uint64_t packed() const { return first << kSlotBits | count; }
  static RowRange unpacked(uint64_t word) { return {word >> kSlotBits, word & kMostCount}; }
};

/// kRemoved: these had ids in the checkpoint before, and have none in this one.
enum class RowBlockKind : uint32_t { kRows = 0, kRemoved = 1 };

/// The fixed part of a block. After it come ranges, ids (hashed tables), rows, and zeros up to a
/// multiple of eight bytes; of rows that were removed only the ranges.
struct RowBlockHead {
  static constexpr size_t kBytes = 32;
  static constexpr uint64_t kMostBytes = 16 * kMiB;
  uint32_t rows = 0;
  uint32_t ranges = 0;
  RowBlockKind kind = RowBlockKind::kRows;
  uint64_t bytes = 0;  // of the whole block
  uint64_t checksum = 0;
};

struct RowFileFooter {
  static constexpr size_t kBytes = 64;
  uint64_t blocks = 0;
  uint64_t rows = 0;
  uint64_t file_bytes = 0;
  uint64_t checksum = 0;  // over the header's and the blocks' checksums, in the file's order
};

void encodeHeader(const RowFileHeader& header, std::span<std::byte, RowFileHeader::kBytes> to);
/// Errors: kCorrupt, kUnsupported for another version; texts do not name the file.
Result<RowFileHeader> decodeHeader(std::span<const std::byte, RowFileHeader::kBytes> from);
/// The checksum at the end of an encoded header.
uint64_t headerChecksum(std::span<const std::byte, RowFileHeader::kBytes> from);

void encodeFooter(const RowFileFooter& footer, std::span<std::byte, RowFileFooter::kBytes> to);
Result<RowFileFooter> decodeFooter(std::span<const std::byte, RowFileFooter::kBytes> from);

/// Everything of a block that comes before its rows: head, ranges, ids, uses. `ids`: one a row,
/// empty for dense tables and removed rows; `uses`: one a row, packed, or empty; `row_bytes`: 0 for
/// removed rows. The checksum goes in by sealBlock(), over that and the rows' bytes.
void encodeBlockStart(RowBlockKind kind, std::span<const RowNumber> rows,
                      std::span<const uint64_t> ids, std::span<const uint64_t> uses,
                      uint32_t row_bytes, std::vector<std::byte>& to);
/// `start` of encodeBlockStart() and the rows' bytes after it. Returns the checksum.
uint64_t sealBlock(std::span<std::byte> start, std::span<const std::byte> rows);
/// Zeros after the rows.
size_t blockPadding(size_t bytes);

Result<RowBlockHead> decodeBlockHead(std::span<const std::byte, RowBlockHead::kBytes> from);

/// A whole block that was read, and checked; borrows its memory.
struct RowBlockView {
  uint32_t rows = 0;
  const std::byte* ranges = nullptr;
  uint32_t range_count = 0;
  RowBlockKind kind = RowBlockKind::kRows;
  const std::byte* ids = nullptr;   // null in dense tables, and of removed rows
  const std::byte* uses = nullptr;  // null where none is tracked, and of removed rows
  const std::byte* bytes = nullptr;

  RowRange range(size_t i) const;
  uint64_t id(size_t i) const;
  RowUse use(size_t i) const;
};
/// Errors: kCorrupt for a wrong checksum, and for rows beyond those of the header.
Result<RowBlockView> decodeBlock(std::span<const std::byte> block, const RowFileHeader& header);

/// What all checksums are made with.
uint64_t checksumOf(std::span<const std::byte> bytes);

}  // namespace tidepool
