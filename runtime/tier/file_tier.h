// SPDX-License-Identifier: Apache-2.0
// The tier that keeps pages in a file on a disk. Thread-safe; every FetchChannel belongs to the
// thread that opened it and must not outlive the tier. A child of fork() shares the file and its
// frames, and opens channels of its own. The file ends with the last of them, however they end.
#pragma once

#include <atomic>
#include <memory>

#include "runtime/options.h"
#include "runtime/tier/file_channel.h"
#include "runtime/tier/frame_table.h"
#include "runtime/tier/page_file.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class FileTier final : public FetchTier {
 public:
  /// A file of far.size bytes where far.target says (os::folderFor()), read and written past the
  /// page cache; through it where the file system has no other way, unless far.direct says that
  /// there must be one. Errors: as os::folderFor() and PageFile::open().
  static Result<std::unique_ptr<Tier>> open(const FarSpec& far, const Patience& patience);

  const char* name() const override { return name_; }
  Bytes capacity() const override { return toBytes(frames_->capacity()); }
  Bytes used() const override { return toBytes(frames_->used()); }
  /// kNoSpace also when the disk is full.
  Result<FrameRun> allocate(PageCount wanted) override;
  void release(FrameRun run) override { frames_->release(run); }
  Status read(FrameRun run, std::byte* memory) override;
  Status write(FrameRun run, const std::byte* memory) override;

  /// Without an io_uring a channel does each request when it is submitted. There are no time
  /// limits: a disk answers, or the kernel does in its place.
  Result<std::unique_ptr<FetchChannel>> openChannel() override;
  Nanoseconds pageRoundTrip() const override { return file_->roundTrip(); }

  FrameTable& table() override { return *frames_; }
  FrameTable* frames() override { return frames_.get(); }
  /// Gives the space of a segment back to the disk that nobody has frames of, if much more is taken
  /// than is used.
  void tend() override;
  void expectFilter() override;
  void afterForkInChild() override;

  const PageFile& file() const { return *file_; }
  /// Whether channels have an io_uring; else why not.
  const Status& ring() const { return ring_; }

 private:
  FileTier(std::unique_ptr<PageFile> file, std::unique_ptr<FrameTable> frames)
      : file_(std::move(file)), frames_(std::move(frames)) {}
  void tryRing();
  void sayWhatIsSlow() const;

  char name_[160] = {};
  const std::unique_ptr<PageFile> file_;
  const std::unique_ptr<FrameTable> frames_;
  Status ring_;
  RingGate gate_;
  std::atomic<bool> said_full_{false};
  uint64_t next_segment_ = 0;  // where tend() goes on: the migrator's
};

}  // namespace tidepool
