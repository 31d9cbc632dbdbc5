// SPDX-License-Identifier: Apache-2.0
// RowFileWriter: a block is encoded and summed by the thread that writes it.
#include "allocator/checkpoint/row_file_writer.h"

#include <fcntl.h>

#include <algorithm>

#include "allocator/checkpoint/file_io.h"

namespace tidepool {
namespace {

// What so much was written after is likely to be on the disk, and leaves the kernel's cache in
// steps of that.
constexpr uint64_t kWrittenAfter = 32 * kMiB;
constexpr uint64_t kLeavesAtOnce = 4 * kMiB;

}  // namespace

Result<std::unique_ptr<RowFileWriter>> RowFileWriter::create(const CheckpointDirectory& directory,
                                                             const std::string& name,
                                                             const RowFileHeader& header) {
  std::unique_ptr<RowFileWriter> writer(new RowFileWriter);
  writer->header_ = header;
  writer->name_ = name;
  writer->file_ = directory.path() + "/" + name;
  writer->fd_ =
      UniqueFd(openat(directory.fd(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!writer->fd_.valid()) return tl::unexpected(fileError("cannot create", writer->file_));
  std::byte bytes[RowFileHeader::kBytes];
  encodeHeader(header, bytes);
  writer->header_checksum_ = headerChecksum(bytes);
  iovec part{bytes, sizeof bytes};
  TP_TRY(writeAt(writer->fd_.get(), 0, {&part, 1}, writer->file_));
  return writer;
}

Status RowFileWriter::append(const RowBlock& block) {
  static constexpr std::byte kZeros[8] = {};
  static thread_local std::vector<std::byte> start;
  const uint32_t row_bytes = block.removed ? 0 : header_.format.rowBytes();
  encodeBlockStart(block.removed ? RowBlockKind::kRemoved : RowBlockKind::kRows, block.rows,
                   block.ids, block.uses, row_bytes, start);
  const size_t payload = block.rows.size() * row_bytes;
  const uint64_t checksum = sealBlock(start, {block.bytes, payload});
  const size_t padding = blockPadding(start.size() + payload);
  const uint64_t bytes = start.size() + payload + padding;
  uint64_t offset = 0, leaves = 0, leaves_until = 0;
  {
    MutexLock lock(mutex_);
    offset = end_;
    end_ += bytes;
    leaves = left_cache_;
    leaves_until = roundDown(end_ - std::min(end_, kWrittenAfter), kLeavesAtOnce);
    left_cache_ = leaves_until;
    if (!block.removed) rows_ += block.rows.size();
    blocks_.emplace_back(offset, checksum);
  }
  iovec parts[] = {{start.data(), start.size()},
                   {block.bytes, payload},
                   {const_cast<std::byte*>(kZeros), padding}};
  TP_TRY(writeAt(fd_.get(), offset, std::span(parts).first(padding == 0 ? 2 : 3), file_));
  // The disk begins at once, so that little is left to do at the end.
  sync_file_range(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes),
                  SYNC_FILE_RANGE_WRITE);
  if (leaves < leaves_until) leaveCache(leaves, leaves_until);
  return {};
}

/// Nobody is likely to read this soon: its pages serve for what is written next, which takes less
/// than new ones and none from other programs. Those that are not on the disk yet stay.
void RowFileWriter::leaveCache(uint64_t from, uint64_t until) const {
  posix_fadvise(fd_.get(), static_cast<off_t>(from), static_cast<off_t>(until - from),
                POSIX_FADV_DONTNEED);
}

Result<ManifestFile> RowFileWriter::finish() {
  MutexLock lock(mutex_);
  std::sort(blocks_.begin(), blocks_.end());
  std::vector<uint64_t> checksums{header_checksum_};
  for (const auto& [offset, checksum] : blocks_) checksums.push_back(checksum);
  RowFileFooter footer;
  footer.blocks = blocks_.size();
  footer.rows = rows_;
  footer.file_bytes = end_ + RowFileFooter::kBytes;
  footer.checksum = checksumOf(std::as_bytes(std::span(checksums)));
  std::byte bytes[RowFileFooter::kBytes];
  encodeFooter(footer, bytes);
  iovec part{bytes, sizeof bytes};
  TP_TRY(writeAt(fd_.get(), end_, {&part, 1}, file_));
  if (fdatasync(fd_.get()) != 0) return tl::unexpected(fileError("cannot write", file_));
  leaveCache(0, footer.file_bytes);
  return ManifestFile{header_.which, name_, Bytes(footer.file_bytes), footer.checksum, rows_};
}

}  // namespace tidepool
