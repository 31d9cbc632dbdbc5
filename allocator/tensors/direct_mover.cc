// SPDX-License-Identifier: Apache-2.0
// The mover of a direct tier: a few threads, each copying one piece after the other.
#include <vector>

#include "allocator/tensors/mover.h"
#include "runtime/base/service_thread.h"

namespace tidepool {
namespace {

class DirectMover final : public TensorMover {
 public:
  DirectMover(DirectTier& tier, TransferQueue& queue, TensorChecksums checksums)
      : tier_(tier), queue_(queue), checksums_(checksums) {}

  ~DirectMover() override {
    queue_.stop();
    for (const auto& thread : threads_) thread->join();
  }

  Status start(size_t threads) {
    for (size_t i = 0; i < threads; ++i) {
      auto thread = std::make_unique<ServiceThread>();
      TP_TRY(thread->start(
          "tp-tensors", [](void* self) { static_cast<DirectMover*>(self)->serve(); }, this));
      threads_.push_back(std::move(thread));
    }
    return {};
  }

 private:
  void serve() {
    while (const auto claim = queue_.take()) queue_.finish(*claim, copy(*claim));
  }

  Status copy(const TransferQueue::Claim& claim) {
    const FrameRun frames = claim.place().frames;
    if (claim.transfer->kind() == TransferKind::kPut) {
      return tier_.write(frames, beforeWrite(claim, checksums_));
    }
    TP_TRY(tier_.read(frames, readInto(claim)));
    return afterRead(claim, checksums_);
  }

  DirectTier& tier_;
  TransferQueue& queue_;
  const TensorChecksums checksums_;
  std::vector<std::unique_ptr<ServiceThread>> threads_;
};

}  // namespace

Result<std::unique_ptr<TensorMover>> TensorMover::forDirect(DirectTier& tier, TransferQueue& queue,
                                                            size_t threads,
                                                            TensorChecksums checksums) {
  auto mover = std::make_unique<DirectMover>(tier, queue, checksums);
  TP_TRY(mover->start(threads));
  return mover;
}

}  // namespace tidepool
