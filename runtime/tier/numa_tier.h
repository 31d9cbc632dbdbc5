// SPDX-License-Identifier: Apache-2.0
// Direct tier on a NUMA node, such as CXL memory that the kernel has onlined: a memory file whose
// pages come from that node. Used in place, promoted and shared with children of fork() as any
// direct tier. A granule's pages are allocated, and each is looked at, before it is given out: what
// came from elsewhere is moved to the node, or goes back if that is full. Thread-safe.
#pragma once

#include <memory>

#include "runtime/os/numa.h"
#include "runtime/tier/direct_file_tier.h"

namespace tidepool {

class NumaTier final : public DirectTier {
 public:
  /// As large as what the node has free now, less a little for the kernel. Errors: kNotFound when
  /// it has no memory or is not there, kUnsupported when this machine has no other, kNoSpace when
  /// none is free, kNoMemory.
  static Result<std::unique_ptr<NumaTier>> open(uint32_t node, const os::NumaNodes& nodes);
  static Result<std::unique_ptr<NumaTier>> open(uint32_t node) {
    return open(node, os::readNumaNodes());
  }

  const char* name() const override { return name_; }
  Bytes capacity() const override { return file_->capacity(); }
  Bytes used() const override { return file_->used(); }
  /// Also kNoSpace when the node has no memory left, whatever took it.
  Result<FrameRun> allocate(PageCount wanted) override;
  void release(FrameRun run) override { file_->release(run); }
  Status read(FrameRun run, std::byte* memory) override;
  Status write(FrameRun run, const std::byte* memory) override;
  FrameTable& table() override { return file_->table(); }
  FrameTable* frames() override { return file_->frames(); }

  Status mapFrames(FrameRun run, void* address) override { return file_->mapFrames(run, address); }
  PageCount mapUnit() const override { return file_->mapUnit(); }
  Status erase(FrameRun run) override { return file_->erase(run); }
  bool soleHolder(FrameRun run) override { return file_->soleHolder(run); }
  void preferHuge(FrameRun run) override { file_->preferHuge(run); }
  std::byte* frameMemory(FrameIndex frame) const override { return file_->frameMemory(frame); }
  /// As the firmware states it; nominal if it does not.
  Nanoseconds extraLoadLatency() const override { return extra_latency_; }
  std::optional<uint32_t> node() const override { return node_; }
  bool emulated() const override { return false; }

 private:
  NumaTier(uint32_t node, Nanoseconds extra_latency, std::unique_ptr<DirectFileTier> file);
  uint32_t node_;
  Nanoseconds extra_latency_;
  std::unique_ptr<DirectFileTier> file_;
  char name_[16];
};

}  // namespace tidepool
