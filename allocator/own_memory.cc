// SPDX-License-Identifier: Apache-2.0
// Managed memory from a Runtime of libtidepool's own.
#include "allocator/memory_source.h"
#include "runtime/runtime.h"

namespace tidepool {
namespace {

class OwnMemory final : public MemorySource {
 public:
  explicit OwnMemory(std::unique_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {
    setRange(runtime_->base(), runtime_->size());
  }

  Result<void*> allocate(Bytes size, Bytes alignment) override {
    return runtime_->allocate(size, alignment);
  }
  Status release(void* address, Bytes size) override { return runtime_->release(address, size); }
  Status discard(void* address, Bytes size) override { return runtime_->discard(address, size); }
  Status renew(void* address, Bytes size) override { return runtime_->renew(address, size); }
  Status place(void* address, Bytes size, Placement placement) override {
    return runtime_->place(address, size, placement);
  }
  Result<Residency> residency(const void* address, Bytes size) const override {
    return runtime_->residency(address, size);
  }
  void willNeed(void* address, Bytes size) override { runtime_->willNeed(address, size); }
  void cold(void* address, Bytes size) override { runtime_->cold(address, size); }
  void pageOut(void* address, Bytes size) override { runtime_->pageOut(address, size); }
  Status chargeLocal(Bytes size) override { return runtime_->chargeLocal(size); }
  void dischargeLocal(Bytes size) override { runtime_->dischargeLocal(size); }
  void noteRowsShort(Nanoseconds saved) override { runtime_->noteRowsShort(saved); }
  Result<std::unique_ptr<RowStore>> rowStore(size_t far_tier) override {
    return runtime_->rowStore(far_tier);
  }
  const StatsPage* stats() override {
    runtime_->refreshStats();
    return &runtime_->stats();
  }

 private:
  std::unique_ptr<Runtime> runtime_;
};

}  // namespace

Result<std::unique_ptr<MemorySource>> startOwnMemory(const Options& options) {
  auto runtime = Runtime::start(options);
  if (!runtime) return tl::unexpected(runtime.error());
  return std::make_unique<OwnMemory>(std::move(*runtime));
}

}  // namespace tidepool
