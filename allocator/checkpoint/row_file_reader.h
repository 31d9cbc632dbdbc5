// SPDX-License-Identifier: Apache-2.0
// Reads one file of rows through, and checks all of it against its manifest. Blocks are read and
// checked by several threads at once; the caller gets each block once, in any order.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "allocator/checkpoint/checkpoint_format.h"
#include "allocator/checkpoint/directory.h"
#include "allocator/table/workers.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace tidepool {

class RowFileReader {
 public:
  /// Checks size, header and footer. Errors: kNotFound, kCorrupt, kUnsupported, kIo, naming the
  /// file.
  static Result<std::unique_ptr<RowFileReader>> open(const CheckpointDirectory& directory,
                                                     const ManifestTable& table,
                                                     const ManifestFile& file);

  const RowFileHeader& header() const { return header_; }
  using Act = std::function<Status(const RowBlockView&)>;
  /// Calls act(block) for every block, by several of the workers at once. Errors: kCorrupt naming
  /// the file and the place, kIo, those of `act`.
  Status forEachBlock(Workers& workers, const Act& act) TP_EXCLUDES(mutex_);

 private:
  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;  // 0: no more
  };
  RowFileReader() = default;
  Status checkEnds(const ManifestTable& table, const ManifestFile& file);
  tl::unexpected<Error> damaged(uint64_t offset, const Error& error) const;
  Result<Place> nextPlace() TP_EXCLUDES(mutex_);
  Status readBlocks(const Act& act);
  Status checkTotals() TP_EXCLUDES(mutex_);
  void stop() TP_EXCLUDES(mutex_);

  std::string file_;
  UniqueFd fd_;
  RowFileHeader header_;
  RowFileFooter footer_;
  Mutex mutex_;
  uint64_t next_ TP_GUARDED_BY(mutex_) = RowFileHeader::kBytes;
  uint64_t asked_ TP_GUARDED_BY(mutex_) = 0;  // the kernel reads ahead up to here
  uint64_t rows_ TP_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> checksums_ TP_GUARDED_BY(mutex_);
  bool failed_ TP_GUARDED_BY(mutex_) = false;
};

}  // namespace tidepool
