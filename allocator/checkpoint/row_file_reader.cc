// SPDX-License-Identifier: Apache-2.0
// RowFileReader: threads take places in the file's order, so the disk sees one sequential read.
#include "allocator/checkpoint/row_file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "allocator/checkpoint/file_io.h"

namespace tidepool {
namespace {

// What is asked of the disk ahead of the reads: some milliseconds' worth of a fast one.
constexpr uint64_t kReadAhead = 16 * kMiB;
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
  posix_fadvise(reader->fd_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
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

Result<RowFileReader::Place> RowFileReader::nextPlace() {
  MutexLock lock(mutex_);
  const uint64_t end = footer_.file_bytes - RowFileFooter::kBytes;
  if (failed_ || next_ == end) return Place{};
  if (next_ + kReadAhead / 2 > asked_ && asked_ < end) {
    posix_fadvise(fd_.get(), static_cast<off_t>(next_), kReadAhead, POSIX_FADV_WILLNEED);
    asked_ = next_ + kReadAhead;
  }
  std::byte bytes[RowBlockHead::kBytes];
  if (next_ + sizeof bytes > end) {
    return damaged(next_, Error::make(ErrorCode::kCorrupt, "the last block is cut off"));
  }
  TP_TRY(readAt(fd_.get(), next_, bytes, file_));
  auto head = decodeBlockHead(bytes);
  if (!head) return damaged(next_, head.error());
  if (head->bytes > end - next_) {
    return damaged(next_, Error::make(ErrorCode::kCorrupt, "the last block is cut off"));
  }
  const Place place{next_, head->bytes};
  next_ += head->bytes;
  rows_ += head->rows;
  checksums_.push_back(head->checksum);
  return place;
}

Status RowFileReader::readBlocks(const Act& act) {
  std::vector<std::byte> memory;
  for (;;) {
    auto place = nextPlace();
    if (!place) return tl::unexpected(place.error());
    if (place->bytes == 0) return {};
    if (memory.size() < place->bytes) memory.resize(place->bytes);
    const auto block = std::span(memory).first(place->bytes);
    TP_TRY(readAt(fd_.get(), place->offset, block, file_));
    auto view = decodeBlock(block, header_);
    if (!view) return damaged(place->offset, view.error());
    TP_TRY(act(*view));
  }
}

void RowFileReader::stop() {
  MutexLock lock(mutex_);
  failed_ = true;
}

Status RowFileReader::checkTotals() {
  MutexLock lock(mutex_);
  if (checksums_.size() == footer_.blocks + 1 && rows_ == footer_.rows &&
      checksumOf(std::as_bytes(std::span(checksums_))) == footer_.checksum) {
    return {};
  }
  return damaged(next_, Error::make(ErrorCode::kCorrupt, "blocks are missing or exchanged"));
}

Status RowFileReader::forEachBlock(Workers& workers, const Act& act) {
  std::vector<Status> statuses(workers.threads());
  workers.run(statuses.size(), [&](size_t task, size_t) {
    statuses[task] = readBlocks(act);
    if (!statuses[task]) stop();
  });
  for (const Status& status : statuses) TP_TRY(status);
  return checkTotals();
}

}  // namespace tidepool
