// SPDX-License-Identifier: Apache-2.0
// Pages in a file on a disk, by their frames: the file, a checksum of each page that was written,
// and how much of the disk is taken. The file has no name and ends with the last process that has
// it; what is beside it lies in memory that children of fork() share. Space is taken from the disk
// a segment at a time, before a frame of it is used: a write then cannot find the disk full. Users
// of a frame keep others off it. Thread-safe; allocates in open() alone.
#pragma once

#include <atomic>
#include <memory>

#include "runtime/base/mapping.h"
#include "runtime/base/mutex.h"
#include "runtime/os/unnamed_file.h"
#include "runtime/transport/fetch_channel.h"

namespace tidepool {

class PageFile {
 public:
  static constexpr PageCount kSegment{kPagesPerGranule};
  /// kAsCan: direct where the file system can, else through the page cache.
  enum class Want : uint8_t { kAsCan, kDirect };

  /// For `pages` pages in `folder`. Direct access is tried before it is believed. Errors: as
  /// createUnnamedFile(), kNoSpace (the disk has no room for a segment), kUnsupported (direct
  /// access is wanted and does not work), kNoMemory.
  static Result<std::unique_ptr<PageFile>> open(const os::Folder& folder, PageCount pages,
                                                Want want);

  /// Blocks until done; memory of any alignment. Errors: kLost for what cannot be read or is not
  /// what was written last; kNoSpace, kIo.
  Status read(FrameRun run, std::byte* to);
  Status write(FrameRun run, const std::byte* from);
  /// For who reads and writes by itself: before a write starts, and after a read has ended.
  void noteWrite(FrameRun run, const std::byte* from);
  /// What was never written may be anything.
  bool isRight(FrameRun run, const std::byte* bytes) const;

  /// Sees that the disk has room for the run. Returns for how much of it, from its first frame on;
  /// less than all: errno says why.
  PageCount reserve(FrameRun run);
  bool isReserved(uint64_t segment) const { return flags()[segment].load(kRelaxed) != 0; }
  uint64_t reservedSegments() const { return reserved().load(kRelaxed); }
  /// Gives the disk its space back. The run is whole segments, all of whose frames the caller
  /// holds.
  void giveBack(FrameRun run);

  /// The median time to read a page, measured when it was opened.
  Nanoseconds roundTrip() const { return round_trip_; }
  PageCount capacity() const { return capacity_; }
  uint64_t segments() const { return segmentOf(capacity_.value() + kSegment.value() - 1); }
  FrameRun segment(uint64_t index) const;
  bool direct() const { return caching_ == os::Caching::kDirect; }
  int fd() const { return fd_.get(); }
  /// Whether the kernel can move it to or from the file as it lies.
  bool suits(const std::byte* memory) const {
    return !direct() || reinterpret_cast<uintptr_t>(memory) % kPageSize == 0;
  }
  /// In a child of fork().
  void afterForkInChild() TP_LOCKS_INHERITED { new (&bounce_lock_) Mutex; }

 private:
  static constexpr PageCount kBounce{64};
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  enum class Direction : uint8_t { kRead, kWrite };

  PageFile(UniqueFd fd, PageCount capacity, os::Caching caching, Mapping shared, Mapping bounce)
      : fd_(std::move(fd)),
        capacity_(capacity),
        caching_(caching),
        shared_(std::move(shared)),
        bounce_(std::move(bounce)) {}
  static Result<std::unique_ptr<PageFile>> openAs(const os::Folder& folder, PageCount pages,
                                                  os::Caching caching);
  static uint64_t segmentOf(uint64_t frame) { return frame / kSegment.value(); }
  static Bytes offsetOf(FrameIndex frame) { return Bytes(frame.value() * kPageSize); }
  Status measure();
  Status move(Direction direction, FrameRun run, std::byte* memory);
  Status bounce(Direction direction, FrameRun run, std::byte* memory) TP_EXCLUDES(bounce_lock_);

  // In shared_: a checksum a frame (0: nothing was written), a counter, a flag a segment.
  std::atomic<uint32_t>* sums() const {
    return reinterpret_cast<std::atomic<uint32_t>*>(shared_.data());
  }
  std::atomic<uint64_t>& reserved() const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(shared_.data() +
                                                     roundUp(capacity_.value() * 4, 8));
  }
  std::atomic<uint8_t>* flags() const {
    return reinterpret_cast<std::atomic<uint8_t>*>(&reserved() + 1);
  }

  UniqueFd fd_;
  const PageCount capacity_;
  const os::Caching caching_;
  Mapping shared_;
  Mutex bounce_lock_;
  Mapping bounce_ TP_GUARDED_BY(bounce_lock_);
  Nanoseconds round_trip_;
};

}  // namespace tidepool
