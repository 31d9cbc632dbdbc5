// SPDX-License-Identifier: Apache-2.0
// RowFileReader: threads take blocks in the file's order out of pieces that were read ahead. A
// block that begins in one piece and ends in another is put together in the room before the later
// one.
#include "allocator/checkpoint/row_file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>

#include "allocator/checkpoint/file_io.h"
#include "runtime/base/check.h"

namespace tidepool {
namespace {

constexpr char kNext[] =
    "restore another checkpoint (`tidepool checkpoint verify` says which "
    "are whole)";

}  // namespace

tl::unexpected<Error> RowFileReader::damaged(uint64_t offset, const Error& error) const {
  return fail(error.code(), "%s is damaged at byte %llu: %s; %s", file_.c_str(),
              static_cast<unsigned long long>(offset), error.text(), kNext);
}

Result<std::unique_ptr<RowFileReader>> RowFileReader::open(const CheckpointDirectory& directory,
                                                           const ManifestTable& table,
                                                           const ManifestFile& file) {
  std::unique_ptr<RowFileReader> reader(new RowFileReader);
  reader->file_ = directory.path() + "/" + file.name;
  reader->fd_ = UniqueFd(openat(directory.fd(), file.name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader->fd_.valid()) return tl::unexpected(fileError("cannot open", reader->file_));
  struct stat about {};
  if (fstat(reader->fd_.get(), &about) != 0) {
    return tl::unexpected(fileError("cannot read", reader->file_));
  }
  if (static_cast<uint64_t>(about.st_size) != file.size.value()) {
    return fail(ErrorCode::kCorrupt, "%s has %lld bytes, and its manifest says %llu; %s",
                reader->file_.c_str(), static_cast<long long>(about.st_size),
                static_cast<unsigned long long>(file.size.value()), kNext);
  }
  TP_TRY(reader->checkEnds(table, file));
  return reader;
}

Status RowFileReader::checkEnds(const ManifestTable& table, const ManifestFile& file) {
  if (file.size.value() < RowFileHeader::kBytes + RowFileFooter::kBytes) {
    return damaged(0, Error::make(ErrorCode::kCorrupt, "it is too short"));
  }
  std::byte start[RowFileHeader::kBytes], end[RowFileFooter::kBytes];
  TP_TRY(readAt(fd_.get(), 0, start, file_));
  const uint64_t end_at = file.size.value() - sizeof end;
  TP_TRY(readAt(fd_.get(), end_at, end, file_));
  auto header = decodeHeader(start);
  if (!header) return damaged(0, header.error());
  auto footer = decodeFooter(end);
  if (!footer) return damaged(end_at, footer.error());
  header_ = *header;
  footer_ = *footer;
  MutexLock lock(mutex_);
  checksums_.assign(1, headerChecksum(start));
  if (header_.table == table.name && header_.format == table.format && header_.ids == table.ids &&
      header_.which == file.which && header_.rows <= table.rows && footer_.rows == file.rows &&
      footer_.file_bytes == file.size.value() && footer_.checksum == file.checksum) {
    return {};
  }
  return fail(ErrorCode::kCorrupt, "%s is not the file that its manifest means; %s", file_.c_str(),
              kNext);
}

/// A counter for a piece that was just read.
RowFileReader::Shared* RowFileReader::share(FileStream::Piece* piece) {
  for (Shared& shared : shared_) {
    // Acquire: pairs with the release in leave(), after which the place is nobody's.
    if (shared.users.load(std::memory_order_acquire) != 0) continue;
    shared.piece = piece;
    shared.users.store(1, std::memory_order_relaxed);
    return &shared;
  }
  TP_CHECK(false);  // there are as many as pieces
}

/// The last user gives the piece back. Takes no lock of the reader: somebody may be waiting
/// for the next piece with it.
void RowFileReader::leave(Shared* shared) {
  FileStream::Piece* const piece = shared->piece;
  // Release: the next read into the piece comes after all looks at it.
  const size_t users = shared->users.fetch_sub(1, std::memory_order_acq_rel);
  TP_CHECK_OP(users, >, 0u);
  if (users == 1) stream_->giveBack(piece);
}

/// Sees to it that so many bytes from next_ on lie one after the other. Fewer mean that there are
/// no more: the end, or a failure elsewhere.
Status RowFileReader::need(size_t bytes) {
  while (rest_.size() < bytes) {
    auto piece = stream_->next();
    if (!piece) return tl::unexpected(piece.error());
    if (*piece == nullptr) return {};
    Shared* const shared = share(*piece);
    std::byte* const start = (*piece)->data - rest_.size();
    if (!rest_.empty()) memcpy(start, rest_.data(), rest_.size());
    rest_ = {start, rest_.size() + (*piece)->bytes};
    if (piece_ != nullptr) leave(piece_);
    piece_ = shared;
  }
  return {};
}

tl::unexpected<Error> RowFileReader::cutOff() const {
  return damaged(next_, Error::make(ErrorCode::kCorrupt, "the last block is cut off"));
}

Result<RowFileReader::Block> RowFileReader::nextBlock() {
  MutexLock lock(mutex_);
  const uint64_t end = footer_.file_bytes - RowFileFooter::kBytes;
  if (next_ == end) return Block{};
  TP_TRY(need(RowBlockHead::kBytes));
  if (failed_.load(std::memory_order_relaxed)) return Block{};
  if (rest_.size() < RowBlockHead::kBytes) return cutOff();
  auto head = decodeBlockHead(rest_.first<RowBlockHead::kBytes>());
  if (!head) return damaged(next_, head.error());
  TP_TRY(need(head->bytes));
  if (failed_.load(std::memory_order_relaxed)) return Block{};
  if (rest_.size() < head->bytes) return cutOff();
  const Block block{next_, rest_.first(head->bytes), piece_};
  // Relaxed: piece_ itself is a user, so the count is not 0.
  piece_->users.fetch_add(1, std::memory_order_relaxed);
  rest_ = rest_.subspan(head->bytes);
  next_ += head->bytes;
  TP_CHECK_OP(next_, <=, end);
  if (head->kind == RowBlockKind::kRows) rows_ += head->rows;
  checksums_.push_back(head->checksum);
  return block;
}

Status RowFileReader::readBlocks(const Act& act) {
  for (;;) {
    auto block = nextBlock();
    if (!block) return tl::unexpected(block.error());
    if (block->piece == nullptr) return {};
    auto view = decodeBlock(block->bytes, header_);
    Status status = view ? act(*view) : damaged(block->offset, view.error());
    leave(block->piece);
    TP_TRY(status);
  }
}

Status RowFileReader::checkTotals() {
  MutexLock lock(mutex_);
  if (checksums_.size() == footer_.blocks + 1 && rows_ == footer_.rows &&
      checksumOf(std::as_bytes(std::span(checksums_))) == footer_.checksum) {
    return {};
  }
  return damaged(next_, Error::make(ErrorCode::kCorrupt, "blocks are missing or exchanged"));
}

/// After the last block nobody holds a piece but piece_.
void RowFileReader::endStream() {
  MutexLock lock(mutex_);
  if (piece_ != nullptr) leave(piece_);
  piece_ = nullptr;
  rest_ = {};
  stream_.reset();
}

Status RowFileReader::forEachBlock(Workers& workers, FilePieces& pieces, const Act& act) {
  auto stream = FileStream::start(fd_.get(), file_, RowFileHeader::kBytes,
                                  footer_.file_bytes - RowFileFooter::kBytes, pieces);
  if (!stream) return tl::unexpected(stream.error());
  stream_ = std::move(*stream);
  std::vector<Status> statuses(workers.threads());
  workers.run(statuses.size(), [&](size_t task, size_t) {
    statuses[task] = readBlocks(act);
    if (statuses[task]) return;
    failed_.store(true, std::memory_order_relaxed);
    stream_->stop();
  });
  endStream();
  for (const Status& status : statuses) TP_TRY(status);
  return checkTotals();
}

}  // namespace tidepool
