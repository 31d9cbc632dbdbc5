// SPDX-License-Identifier: Apache-2.0
// Direct tier over a file that can be mapped shared: an emulated CXL pool in a memfd, or a
// device-DAX node. Whole granules only. Released granules are erased before they can be given out
// again (invariant I7). Thread-safe.
#pragma once

#include <memory>
#include <string_view>

#include "runtime/base/mapping.h"
#include "runtime/base/unique_fd.h"
#include "runtime/space/range_allocator.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class DirectFileTier final : public DirectTier {
 public:
  /// An emulated pool of `size` bytes, private to this process; it costs memory only as used.
  /// Errors: kNoMemory.
  static Result<std::unique_ptr<DirectFileTier>> createEmulated(Bytes size);
  /// A device-DAX node such as /dev/dax0.0; `size` 0 takes all of it. Errors: kNotFound,
  /// kPermission, kInvalidArgument when it is not a DAX device or smaller than a granule.
  static Result<std::unique_ptr<DirectFileTier>> openDax(const char* path, Bytes size);

  const char* name() const override { return name_; }
  Bytes capacity() const override { return window_.size(); }
  Bytes used() const override { return granules_.allocated(); }
  Result<FrameRun> allocate(PageCount wanted) override;
  void release(FrameRun run) override;
  Status read(FrameRun run, std::byte* memory) override;
  Status write(FrameRun run, const std::byte* memory) override;
  Status mapFrames(FrameRun run, void* address) override;
  PageCount mapUnit() const override {
    return PageCount(backing_ == Backing::kMemfd ? 1 : kPagesPerGranule);
  }
  Nanoseconds extraLoadLatency() const override;
  bool emulated() const override { return backing_ == Backing::kMemfd; }

  Status erase(FrameRun run) override;
  std::byte* frameMemory(FrameIndex frame) const override {
    return window_.data() + (frame.value() << kPageShift);
  }

 private:
  enum class Backing : uint8_t { kMemfd, kDax };
  DirectFileTier(Backing backing, UniqueFd fd, Mapping window);

  Backing backing_;
  UniqueFd fd_;
  Mapping window_;
  RangeAllocator granules_;
  char name_[64];
};

}  // namespace tidepool
