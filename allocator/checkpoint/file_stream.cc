// SPDX-License-Identifier: Apache-2.0
// FileStream: reads past the kernel's cache begin and end at whole pages, in the file and in
// memory.
#include "allocator/checkpoint/file_stream.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "allocator/checkpoint/file_io.h"

namespace tidepool {
namespace {

// Of a large file so many pages tell whether the kernel has it in memory.
constexpr uint64_t kProbes = 64;

}  // namespace

/// In huge pages: reads past the cache come in one transfer then, not in one for every few pages,
/// and are three times as fast.
Result<FilePieces> FilePieces::make(Bytes room_before) {
  const Bytes room(roundUp(room_before.value(), kPageSize));
  FilePieces pieces;
  for (size_t i = 0; i < kPieces; ++i) {
    auto memory = HugeMemory::allocate(room + kPiece);  // room that nobody uses costs nothing
    if (!memory) return tl::unexpected(memory.error());
    auto piece = std::make_unique<Piece>();
    piece->memory_ = std::move(*memory);
    pieces.pieces_.push_back(std::move(piece));
  }
  return pieces;
}

Result<std::unique_ptr<FileStream>> FileStream::start(int fd, const std::string& path,
                                                      uint64_t from, uint64_t end,
                                                      FilePieces& pieces) {
  std::unique_ptr<FileStream> stream(new FileStream(fd, path, from, end));
  stream->chooseWay();
  {
    MutexLock lock(stream->mutex_);
    for (const auto& piece : pieces.pieces_) stream->free_.push_back(piece.get());
  }
  TP_TRY(stream->thread_.start(
      "tp-file-stream", [](void* self) { static_cast<FileStream*>(self)->readAll(); },
      stream.get()));
  return stream;
}

FileStream::~FileStream() {
  stop();
  thread_.join();
}

void FileStream::chooseWay() {
  // Not every file system can read past its cache: then it is read through after all.
  const int flags = fcntl(fd_, F_GETFL);
  if (!inMemory() && flags >= 0 && fcntl(fd_, F_SETFL, flags | O_DIRECT) == 0) return;
  posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
}

/// Whether the kernel has most of the file in its cache, by a sample of pages.
bool FileStream::inMemory() const {
  const uint64_t pages = (end_ + kPageSize - 1) / kPageSize;
  void* const at = mmap(nullptr, pages * kPageSize, PROT_READ, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) return false;
  const Mapping mapped(at, Bytes(pages * kPageSize));
  const uint64_t probes = std::min(pages, kProbes);
  uint64_t present = 0;
  for (uint64_t i = 0; i < probes; ++i) {
    unsigned char state = 0;
    mincore(mapped.data() + pages * i / probes * kPageSize, kPageSize, &state);
    present += state & 1;
  }
  return 2 * present > probes;
}

/// A piece to read into. Null when nobody wants any more.
FileStream::Piece* FileStream::take() {
  MutexLock lock(mutex_);
  while (free_.empty() && !stopped_) changed_.wait(mutex_);
  if (stopped_) return nullptr;
  Piece* const piece = free_.back();
  free_.pop_back();
  return piece;
}

/// One piece, from next_ to the end of the piece or of the part.
Status FileStream::fill(Piece& piece) {
  const uint64_t begin = next_ / kPageSize * kPageSize;
  constexpr uint64_t kSize = FilePieces::kPiece.value();
  const uint64_t until = std::min(end_, next_ / kSize * kSize + kSize);
  std::byte* const memory = piece.memory_.data() + piece.memory_.size().value() - kSize;
  // Whole pages are asked for; the file may end before the last one does.
  for (uint64_t at = begin; at < until;) {
    const ssize_t got =
        pread(fd_, memory + (at - begin), roundUp(until - at, kPageSize), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return tl::unexpected(fileError("cannot read", path_));
    at += static_cast<uint64_t>(got);
    // A part of a page is all there is: past the cache nothing can be read from its middle on.
    if (at < until && (got == 0 || at % kPageSize != 0)) return endsTooEarly(path_);
  }
  piece.data = memory + (next_ - begin);
  piece.offset = next_;
  piece.bytes = until - next_;
  next_ = until;
  return {};
}

/// The thread's work.
void FileStream::readAll() {
  std::optional<Error> error;
  while (next_ < end_ && !error) {
    Piece* const piece = take();
    if (piece == nullptr) return;
    const Status filled = fill(*piece);
    if (!filled) error = filled.error();
    MutexLock lock(mutex_);
    filled ? full_.push_back(piece) : free_.push_back(piece);
    changed_.notifyAll();
  }
  MutexLock lock(mutex_);
  error_ = error;
  ended_ = true;
  changed_.notifyAll();
}

Result<FileStream::Piece*> FileStream::next() {
  MutexLock lock(mutex_);
  while (full_.empty() && !ended_ && !stopped_) changed_.wait(mutex_);
  if (stopped_) return nullptr;
  if (!full_.empty()) {
    Piece* const piece = full_.front();
    full_.pop_front();
    return piece;
  }
  if (error_) return tl::unexpected(*error_);
  return nullptr;
}

void FileStream::giveBack(Piece* piece) {
  MutexLock lock(mutex_);
  free_.push_back(piece);
  changed_.notifyAll();
}

void FileStream::stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notifyAll();
}

}  // namespace tidepool
