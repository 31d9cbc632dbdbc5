// SPDX-License-Identifier: Apache-2.0
// Publishes tables for other processes of this host to read: publish() brings a file up to the rows
// as they are between two calls on any of the tables, and readers have all of it at once, or none.
// The file stays when the publisher goes, however that comes about, and another one goes on with
// it. Thread-safe; the tables outlive it. Belongs to the process that made it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/publish/image.h"
#include "allocator/table/row_bits.h"
#include "allocator/table/row_sink.h"
#include "runtime/base/mutex.h"

namespace tidepool {

class Publisher final : private RowSink {
 public:
  /// `mode`: whom the file lets read. Nothing is published yet; what a publisher before has
  /// published of the same tables stays until then. Errors: kInvalidArgument,
  /// kUnsupported (too many rows), kConflict (somebody else publishes to the path, or one of the
  /// tables; other tables are there), kCorrupt (another kind of file is), kPermission (another
  /// user's is, too), kNoSpace, kNoMemory, kIo.
  static Result<std::unique_ptr<Publisher>> open(std::span<EmbeddingTable* const> tables,
                                                 const std::string& path, uint32_t mode);
  /// Local memory that one takes, besides the file.
  static Bytes memoryFor(std::span<EmbeddingTable* const> tables);
  ~Publisher() override;
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  /// Returns the generation, counted from 1 on. After an error readers have what they had, and the
  /// next call makes up for it. Errors: kNoSpace (where the file is), kNotFound (the file was
  /// removed), kUnsupported (in a child of fork()), what broke a table, what reading far rows can
  /// end in.
  Result<uint64_t> publish() TP_EXCLUDES(mutex_);

 private:
  /// Of one table.
  struct Records {
    RowBits differs;         // of rows that may be elsewhere in the two halves
    RecordPlace used = 0;    // all places up to here have been given out
    RecordPlace free = 0;    // the last one that was given back; it names the one before
    RecordPlace backed = 0;  // have memory, up to here
  };
  Publisher(std::span<EmbeddingTable* const> tables, const std::string& path)
      : path_(path), owner_(getpid()), tables_(tables.begin(), tables.end()) {}
  Status setUp();
  Status checkFile() const;
  Status findRecords(size_t index);
  void catchUp(size_t index);
  void giveBack(size_t index, RecordPlace place);
  Result<RecordPlace> newPlace(size_t index);
  Status take(size_t index, RowNumber row, uint64_t id, const std::byte* bytes) override;
  Status drop(size_t index, RowNumber row) override;
  void complete() override;

  const std::string path_;
  const pid_t owner_;
  const std::vector<EmbeddingTable*> tables_;
  size_t published_tables_ = 0;  // that know of it
  UniqueFd fd_;
  Image image_;
  Mutex mutex_;
  std::vector<Records> records_;
  unsigned half_ = 0;  // that is being written
};

}  // namespace tidepool
