// SPDX-License-Identifier: Apache-2.0
// A published image: the weights of tables in a file that one process writes and others map for
// reading. It has two generations of which row is where: readers use the newest whole one while the
// writer makes the next. docs/tables.md has the bytes. Thread-safe for reading; one writer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "allocator/table/table.h"
#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"

namespace tidepool {

/// Where a row's record is, counted from 1; 0 for none.
using RecordPlace = uint32_t;

/// Which of the two a generation is in.
inline unsigned halfOf(uint64_t generation) { return generation & 1; }

/// One table of an image. Of the halves, the writer changes the one that nobody is to read.
class ImageTable {
 public:
  static constexpr size_t kMostName = 255;
  /// Places of records, two a row, have 32 bits.
  static constexpr RowNumber kMostRows = (RowNumber{1} << 31) - 2;

  ImageTable() = default;
  explicit ImageTable(const TableOptions& options);
  /// As it lies in the file. Errors: kCorrupt.
  static Result<ImageTable> decode(const std::byte* from);
  void encode(std::byte* to) const;
  bool operator==(const ImageTable& other) const;

  const std::string& name() const { return name_; }
  RowNumber rows() const { return rows_; }
  /// Of weights alone.
  const RowFormat& format() const { return format_; }
  IdKind ids() const { return ids_; }
  const Initializer& initializer() const { return initializer_; }

  /// Its parts begin there, counted from the image's beginning; returns where they end.
  uint64_t layOut(uint64_t at);
  /// Where the image begins.
  void mapAt(std::byte* base) { base_ = base; }
  /// What lies before the records is used from the start on.
  uint64_t recordsAt() const { return records_at_; }
  uint32_t recordBytes() const { return weightsAt() + format_.stride(); }
  RecordPlace mostRecords() const { return static_cast<RecordPlace>(2 * rows_); }

  /// A number that cannot be a place, which a half that is being written may have, counts as the
  /// first: what is read there is thrown away.
  std::byte* record(RecordPlace place) const {
    const uint64_t at = place - 1 < mostRecords() ? place - 1 : 0;
    return base_ + records_at_ + at * recordBytes();
  }
  std::byte* weights(RecordPlace place) const { return record(place) + weightsAt(); }
  /// Of hashed ids.
  uint64_t id(RecordPlace place) const {
    uint64_t number;
    memcpy(&number, record(place), sizeof number);
    return number;
  }

  /// 0 for an id without a row. Ends, with anything, in a half that is being written.
  RecordPlace find(unsigned half, uint64_t id) const {
    return ids_ == IdKind::kDense ? place(half, id) : findHashed(half, id);
  }
  /// find() of each.
  void findMany(unsigned half, std::span<const int64_t> ids, RecordPlace* found) const;
  /// Relaxed: whether what was read is to be used is known afterwards (Published).
  RecordPlace place(unsigned half, RowNumber row) const {
    return __atomic_load_n(&places(half)[row], __ATOMIC_RELAXED);
  }
  /// The row's record is there from now on; both that one and the old one have their ids.
  void point(unsigned half, RowNumber row, RecordPlace place);
  /// Makes one half what the other is.
  void copyHalf(unsigned from, unsigned to);
  /// Whether find() ends in that half, and finds every row that has a record, as it may not in a
  /// damaged file. Places are records that there are, none of two rows.
  bool findsEach(unsigned half) const;

 private:
  uint32_t weightsAt() const { return ids_ == IdKind::kHashed ? RowFormat::kAlignment : 0; }
  uint64_t entryCount() const { return ids_ == IdKind::kHashed ? rows_ * 3 / 2 + 2 : 0; }
  RecordPlace* places(unsigned half) const {
    return reinterpret_cast<RecordPlace*>(base_ + places_at_[half]);
  }
  /// Of hashed ids, open addressing: row + 1, or 0.
  uint32_t* entries(unsigned half) const {
    return reinterpret_cast<uint32_t*>(base_ + entries_at_[half]);
  }
  uint64_t home(uint64_t id) const;
  uint64_t next(uint64_t entry) const { return entry + 1 == entryCount() ? 0 : entry + 1; }
  RecordPlace findHashed(unsigned half, uint64_t id) const;
  void insert(unsigned half, RowNumber row);
  void erase(unsigned half, RowNumber row);

  std::string name_;
  RowNumber rows_ = 0;
  RowFormat format_;
  IdKind ids_ = IdKind::kDense;
  Initializer initializer_;
  uint64_t places_at_[2] = {}, entries_at_[2] = {}, records_at_ = 0;
  std::byte* base_ = nullptr;
};

class Image {
 public:
  /// What tells readers which half is whole. `writing` is `published`, or one more.
  struct State {
    std::atomic<uint64_t> published;  // generation; 0: none yet
    std::atomic<uint64_t> writing;
    std::atomic<uint64_t> when[2];  // nanoseconds since 1970, by half
  };

  /// For reading. Errors: kNotFound (no file, or nothing is published there yet), kPermission,
  /// kCorrupt (it is none), kUnsupported (of another version), kStaleEpoch (of another host, or of
  /// before this one started), kNoMemory, kIo.
  static Result<Image> open(const std::string& path);
  /// Whether such tables can be published. Errors: kInvalidArgument, kUnsupported.
  static Status check(std::span<EmbeddingTable* const> tables);
  /// For writing by this process alone, while `fd` is open. What is there is gone on with if it is
  /// of these tables, which check() has found good, and stays as it is if it is not. Its rights
  /// become `mode`. Errors: kInvalidArgument, kConflict (others write there, or it is of other
  /// tables), kPermission (also if it is another user's), kNoSpace, and as open().
  static Result<Image> openToWrite(const std::string& path, uint32_t mode,
                                   std::span<EmbeddingTable* const> tables, UniqueFd& fd);

  /// Memory for a part of a file that is written by this process: what is written to where there is
  /// none ends the process. Errors: kNoSpace, kIo.
  static Status allocate(int fd, const std::string& path, uint64_t at, uint64_t bytes);

  std::span<ImageTable> tables() { return tables_; }
  std::span<const ImageTable> tables() const { return tables_; }
  uint64_t bytes() const { return memory_.size().value(); }
  State& state() const { return *reinterpret_cast<State*>(memory_.data() + kStateAt); }

 private:
  static constexpr uint64_t kStateAt = 1024, kTablesAt = kPageSize, kTableBytes = 512;
  static constexpr uint32_t kMostTables = 4096;
  struct Head;

  uint64_t layOut();
  static Result<Head> readHead(int fd, const std::string& path);
  Status readTables(int fd, const std::string& path, const Head& head);
  Status create(int fd, const std::string& path);
  void map(Mapping memory);

  std::vector<ImageTable> tables_;
  Mapping memory_;
};

}  // namespace tidepool
