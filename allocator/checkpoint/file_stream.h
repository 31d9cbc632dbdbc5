// SPDX-License-Identifier: Apache-2.0
// Reads a part of a file from its beginning to its end in large pieces, by a thread of its own that
// is some pieces ahead of those who use them. Files that the kernel has in memory are copied from
// there; others come from the disk without passing through its cache, which saves a copy and leaves
// to other programs what they have in it. next() is called by one thread at a time, giveBack() by
// any.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/table/huge_memory.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/base/service_thread.h"

namespace tidepool {

/// The memory of a stream, for one after the other: making it costs as much as reading it full.
class FilePieces {
 public:
  struct Piece {
    std::byte* data = nullptr;
    uint64_t offset = 0;  // in the file
    size_t bytes = 0;

   private:
    friend class FilePieces;
    friend class FileStream;
    HugeMemory memory_;
  };
  /// Pieces begin where their number times this does, but for the first.
  static constexpr Bytes kPiece = Bytes(4 * kMiB);
  /// One is being read, one waits, and some are in use.
  static constexpr size_t kPieces = 4;

  /// The bytes before a piece's `data`, `room_before` of them, are its user's. Errors: kNoMemory.
  static Result<FilePieces> make(Bytes room_before);

 private:
  friend class FileStream;
  std::vector<std::unique_ptr<Piece>> pieces_;
};

class FileStream {
 public:
  using Piece = FilePieces::Piece;

  /// Bytes `from` to `end` of the open file `fd`, which is not read by others meanwhile. File and
  /// pieces outlive the stream and are its alone. `path` is for errors. Errors: kNoMemory.
  static Result<std::unique_ptr<FileStream>> start(int fd, const std::string& path, uint64_t from,
                                                   uint64_t end, FilePieces& pieces);
  /// Ends the thread. All pieces were given back.
  ~FileStream();
  FileStream(const FileStream&) = delete;
  FileStream& operator=(const FileStream&) = delete;

  /// The next piece; waits for it. Null when there is none left, and after stop(). A caller waiting
  /// here holds one piece at most, or others give theirs back meanwhile. Errors: kCorrupt when the
  /// file ends before `end`, kIo.
  Result<Piece*> next() TP_EXCLUDES(mutex_);
  void giveBack(Piece* piece) TP_EXCLUDES(mutex_);
  /// Reads no further; next() returns null.
  void stop() TP_EXCLUDES(mutex_);

 private:
  FileStream(int fd, const std::string& path, uint64_t from, uint64_t end)
      : fd_(fd), path_(path), end_(end), next_(from) {}
  void chooseWay();
  bool inMemory() const;
  void readAll() TP_EXCLUDES(mutex_);
  Piece* take() TP_EXCLUDES(mutex_);
  Status fill(Piece& piece);

  const int fd_;
  const std::string path_;
  const uint64_t end_;
  uint64_t next_;  // the thread's, once it runs
  Mutex mutex_;
  CondVar changed_;
  std::vector<Piece*> free_ TP_GUARDED_BY(mutex_);
  std::deque<Piece*> full_ TP_GUARDED_BY(mutex_);
  std::optional<Error> error_ TP_GUARDED_BY(mutex_);
  bool ended_ TP_GUARDED_BY(mutex_) = false;
  bool stopped_ TP_GUARDED_BY(mutex_) = false;
  ServiceThread thread_;
};

}  // namespace tidepool
