// SPDX-License-Identifier: Apache-2.0
// Reads one file of rows through, and checks all of it against its manifest. The file is read by a
// thread of its own, some MiB ahead; blocks are checked, and used by the caller, by several threads
// at once, each block once, in any order.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "allocator/checkpoint/checkpoint_format.h"
#include "allocator/checkpoint/directory.h"
#include "allocator/checkpoint/file_stream.h"
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
  /// the file and the place, kIo, kNoMemory, those of `act`.
  Status forEachBlock(Workers& workers, FilePieces& pieces, const Act& act) TP_EXCLUDES(mutex_);
  /// What one reader after the other needs.
  static Result<FilePieces> pieces() { return FilePieces::make(Bytes(RowBlockHead::kMostBytes)); }

 private:
  /// A piece of the file, and who still looks at its blocks; the last one gives it back.
  struct Shared {
    FileStream::Piece* piece = nullptr;
    std::atomic<size_t> users{0};
  };
  /// A block in memory; null at the end.
  struct Block {
    uint64_t offset = 0;
    std::span<const std::byte> bytes;
    Shared* piece = nullptr;
  };
  RowFileReader() = default;
  Status checkEnds(const ManifestTable& table, const ManifestFile& file);
  tl::unexpected<Error> damaged(uint64_t offset, const Error& error) const;
  tl::unexpected<Error> cutOff() const TP_REQUIRES(mutex_);
  Status need(size_t bytes) TP_REQUIRES(mutex_);
  Result<Block> nextBlock() TP_EXCLUDES(mutex_);
  void leave(Shared* piece);
  Shared* share(FileStream::Piece* piece) TP_REQUIRES(mutex_);
  Status readBlocks(const Act& act);
  void endStream() TP_EXCLUDES(mutex_);
  Status checkTotals() TP_EXCLUDES(mutex_);

  std::string file_;
  UniqueFd fd_;
  RowFileHeader header_;
  RowFileFooter footer_;
  std::unique_ptr<FileStream> stream_;  // while blocks are read
  Shared shared_[FilePieces::kPieces];
  std::atomic<bool> failed_{false};  // nobody takes another block
  Mutex mutex_;
  uint64_t next_ TP_GUARDED_BY(mutex_) = RowFileHeader::kBytes;
  std::span<const std::byte> rest_ TP_GUARDED_BY(mutex_);  // of the piece, from next_ on
  Shared* piece_ TP_GUARDED_BY(mutex_) = nullptr;
  uint64_t rows_ TP_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> checksums_ TP_GUARDED_BY(mutex_);
};

}  // namespace tidepool
