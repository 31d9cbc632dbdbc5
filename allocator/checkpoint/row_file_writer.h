// SPDX-License-Identifier: Apache-2.0
// Writes one file of rows. Blocks may be appended by several threads at once: each gets a place of
// its own in the file. A file that was not finished is no part of any checkpoint.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "allocator/checkpoint/checkpoint_format.h"
#include "allocator/checkpoint/directory.h"
#include "allocator/table/row_block.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace tidepool {

class RowFileWriter {
 public:
  /// A new file. Errors: kNoSpace, kPermission, kIo.
  static Result<std::unique_ptr<RowFileWriter>> create(const CheckpointDirectory& directory,
                                                       const std::string& name,
                                                       const RowFileHeader& header);
  /// Errors: kNoSpace, kIo.
  Status append(const RowBlock& block) TP_EXCLUDES(mutex_);
  /// Everything is on the disk when it returns. Errors: as append().
  Result<ManifestFile> finish() TP_EXCLUDES(mutex_);

 private:
  RowFileWriter() = default;
  void leaveCache(uint64_t from, uint64_t until) const;

  RowFileHeader header_;
  std::string name_, file_;  // within the directory, and with it
  UniqueFd fd_;
  uint64_t header_checksum_ = 0;
  Mutex mutex_;
  uint64_t end_ TP_GUARDED_BY(mutex_) = RowFileHeader::kBytes;
  uint64_t left_cache_ TP_GUARDED_BY(mutex_) = 0;  // what lies before it
  uint64_t rows_ TP_GUARDED_BY(mutex_) = 0;
  std::vector<std::pair<uint64_t, uint64_t>> blocks_ TP_GUARDED_BY(mutex_);  // offset, checksum
};

}  // namespace tidepool
