// SPDX-License-Identifier: Apache-2.0
// Direct tier over files that can be mapped shared: an emulated CXL pool in a memfd, a device-DAX
// node, or pieces of pools that the fabric manager assigned. Whole granules only. Released granules
// are erased before they can be given out again (invariant I7), those of a device when they are.
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/mapping.h"
#include "runtime/base/unique_fd.h"
#include "runtime/tier/frame_table.h"
#include "runtime/tier/tier.h"

namespace tidepool {

/// A part of a file. Sizes are bytes, and whole granules.
struct FilePiece {
  UniqueFd file;
  Bytes offset;
  Bytes size;
};

class DirectFileTier final : public DirectTier {
 public:
  /// An emulated pool of `size` bytes, private to this process and to those that it forks; it costs
  /// memory only as used.
  /// Errors: kNoMemory.
  /// `file` is what /proc/PID/maps calls it.
  static Result<std::unique_ptr<DirectFileTier>> createEmulated(
      Bytes size, const char* file = "tidepool-cxl-emulated");
  /// A device-DAX node such as /dev/dax0.0; `size` 0 takes all of it. Errors: kNotFound,
  /// kPermission, kConflict when another process has it open this way, kInvalidArgument when it is
  /// not a DAX device or smaller than a granule.
  static Result<std::unique_ptr<DirectFileTier>> openDax(const char* path, Bytes size);

  /// The pieces, one after the other, as one tier; takes over their files. Errors: kInvalidArgument
  /// for pieces that are not whole granules, kNoMemory.
  static Result<std::unique_ptr<DirectFileTier>> overPieces(std::vector<FilePiece> pieces,
                                                            const char* name);

  const char* name() const override { return name_; }
  Bytes capacity() const override { return window_.size(); }
  Bytes used() const override { return Bytes(granules_->used().value() * kGranuleSize); }
  Result<FrameRun> allocate(PageCount wanted) override;
  void release(FrameRun run) override;
  Status read(FrameRun run, std::byte* memory) override;
  Status write(FrameRun run, const std::byte* memory) override;
  Status mapFrames(FrameRun run, void* address) override;
  PageCount mapUnit() const override {
    return PageCount(backing_ == Backing::kShmem ? 1 : kPagesPerGranule);
  }
  Nanoseconds extraLoadLatency() const override;
  bool emulated() const override { return backing_ != Backing::kDax; }

  FrameTable& table() override { return *granules_; }
  /// None but for shared memory: the others refuse the write protection that a snapshot is taken
  /// with.
  FrameTable* frames() override { return backing_ == Backing::kShmem ? granules_.get() : nullptr; }
  /// `run` is of whole granules.
  bool soleHolder(FrameRun run) override { return granules_->soleHolder(granulesOf(run)); }

  Status erase(FrameRun run) override;
  void resume() override;
  void preferHuge(FrameRun run) override;
  std::byte* frameMemory(FrameIndex frame) const override {
    return window_.data() + (frame.value() << kPageShift);
  }

 private:
  /// Memory of the kernel's (a memfd, a file in /dev/shm), a file on a disk, a device.
  enum class Backing : uint8_t { kShmem, kFile, kDax };
  DirectFileTier(Backing backing, std::vector<FilePiece> pieces, Mapping window,
                 std::unique_ptr<FrameTable> granules);
  static Result<std::unique_ptr<DirectFileTier>> over(Backing backing,
                                                      std::vector<FilePiece> pieces,
                                                      Mapping window);
  static Result<std::unique_ptr<DirectFileTier>> over(Backing backing, UniqueFd file,
                                                      Mapping window);
  static Backing backingOf(const std::vector<FilePiece>& pieces);
  static FrameRun granulesOf(FrameRun run);
  Status eraseNow(FrameRun run);
  /// Granules of the table, which nobody holds any more.
  void eraseFree(FrameRun granules);
  /// The piece that the frame lies in, and where in its file.
  std::pair<const FilePiece*, Bytes> placeOf(FrameIndex frame) const;

  Backing backing_;
  std::vector<FilePiece> pieces_;  // a granule lies within one
  Mapping window_;
  std::unique_ptr<FrameTable> granules_;   // a frame of this table is a granule
  std::atomic<bool> owes_erasure_{false};  // of what became free while it was suspended
  char name_[64] = {};
};

}  // namespace tidepool
