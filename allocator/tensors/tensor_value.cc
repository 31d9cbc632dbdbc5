// SPDX-License-Identifier: Apache-2.0
// TensorValue: frames, and how they are cut into pieces.
#include "allocator/tensors/tensor_value.h"

#include <algorithm>

namespace tidepool {

Result<std::shared_ptr<TensorValue>> TensorValue::create(std::shared_ptr<FramePool> pool,
                                                         std::string name, std::string description,
                                                         Bytes size) {
  auto frames = pool->take(size);
  if (!frames) {
    return fail(frames.error().code(), "tensor %s: %s", name.c_str(), frames.error().text());
  }
  return std::shared_ptr<TensorValue>(new TensorValue(
      std::move(pool), std::move(name), std::move(description), size, std::move(*frames)));
}

TensorValue::TensorValue(std::shared_ptr<FramePool> pool, std::string name, std::string description,
                         Bytes size, std::vector<FrameRun> frames)
    : pool_(std::move(pool)),
      name_(std::move(name)),
      description_(std::move(description)),
      size_(size),
      frames_(std::move(frames)) {
  uint64_t offset = 0;
  for (const FrameRun& run : frames_) {
    for (uint64_t page = 0; page < run.count.value();) {
      const uint64_t left = size.value() - offset;
      uint64_t bytes = std::min((run.count.value() - page) * kPageSize, kPieceBytes);
      bytes = std::min(bytes, left);
      if (bytes > kPageSize) bytes = roundDown(bytes, kPageSize);  // the rest is a piece of its own
      const PageCount pages = toPages(Bytes(bytes));
      pieces_.push_back({{run.first + page, pages}, offset, Bytes(bytes), 0});
      page += pages.value();
      offset += bytes;
    }
  }
}

}  // namespace tidepool
