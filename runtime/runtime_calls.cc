// SPDX-License-Identifier: Apache-2.0
// The Runtime's calls on memory, each handed to the part that does it. Thread-safe as the header
// says.
#include <sys/mman.h>

#include "runtime/base/own_stack.h"
#include "runtime/local_charge.h"
#include "runtime/runtime_impl.h"
#include "runtime/tier/far_kind.h"
#include "runtime/tier/row_store.h"

namespace tidepool {
namespace {

/// What takes locks does not run on a stack in managed memory: service threads that have taken a
/// page of it away may need those locks to bring it back.
template <typename Work>
auto apart(const Runtime& runtime, Work work) {
  return OwnStack::runIf(runtime.contains(__builtin_frame_address(0)), work);
}

uintptr_t at(const void* address) { return reinterpret_cast<uintptr_t>(address); }

/// The same of a tier that lends rows.
class ApartRows final : public RowStore {
 public:
  ApartRows(const Runtime& runtime, std::unique_ptr<RowStore> rows)
      : runtime_(runtime), rows_(std::move(rows)) {}

  TierKind kind() const override { return rows_->kind(); }
  Result<FrameRun> allocate(Bytes size) override {
    return apart(runtime_, [=, this] { return rows_->allocate(size); });
  }
  void release(FrameRun run) override {
    apart(runtime_, [=, this] { rows_->release(run); });
  }
  void preferHuge(FrameRun run) override { rows_->preferHuge(run); }
  std::byte* memory(FrameRun run) const override { return rows_->memory(run); }
  Result<std::unique_ptr<RowChannel>> openRows(const RowArea& area) override {
    return apart(runtime_, [=, this] { return rows_->openRows(area); });
  }

 private:
  const Runtime& runtime_;
  std::unique_ptr<RowStore> rows_;
};

}  // namespace

Result<void*> Runtime::allocate(Bytes size, Bytes alignment, RangeUse use) {
  const auto address =
      apart(*this, [=, this] { return impl_->ranges->allocate(size, alignment, use); });
  if (!address) return tl::unexpected(address.error());
  return reinterpret_cast<void*>(*address);
}

Result<void*> Runtime::reserve(Bytes size, Bytes alignment) {
  const auto address = apart(*this, [=, this] { return impl_->ranges->reserve(size, alignment); });
  if (!address) return tl::unexpected(address.error());
  return reinterpret_cast<void*>(*address);
}

Status Runtime::reserveAt(void* address, Bytes size) {
  return apart(*this, [=, this] { return impl_->ranges->reserveAt(at(address), size); });
}

Status Runtime::claim(void* address, Bytes size) {
  return apart(*this, [=, this] { return impl_->ranges->claim(at(address), size); });
}

ProtectionSpan Runtime::spanAt(const void* address, Bytes size) const {
  return apart(*this, [=, this] { return impl_->ranges->spanAt(at(address), size); });
}

OwnerSpan Runtime::ownerAt(const void* address, Bytes size) const {
  return apart(*this, [=, this] { return impl_->ranges->ownerAt(at(address), size); });
}

bool Runtime::isEmpty(const void* address) const {
  return apart(*this, [=, this] { return impl_->ranges->isEmpty(at(address)); });
}

Status Runtime::release(void* address, Bytes size) {
  return apart(*this, [=, this] { return impl_->ranges->release(at(address), size); });
}

Status Runtime::discard(void* address, Bytes size) {
  return apart(*this, [=, this] { return impl_->ranges->discard(at(address), size); });
}

Status Runtime::renew(void* address, Bytes size) {
  TP_TRY(withdraw(address, size));
  return protect(address, size, PROT_READ | PROT_WRITE);
}

Status Runtime::withdraw(void* address, Bytes size) {
  return apart(*this, [=, this] { return impl_->ranges->withdraw(at(address), size); });
}

Status Runtime::handOver(void* address, Bytes size) {
  return apart(*this,
               [=, this] { return impl_->ranges->handOver(at(address), size, *impl_->staging); });
}

void Runtime::surrender(void* address, Bytes size) {
  apart(*this, [=, this] { impl_->ranges->surrender(at(address), size); });
}

Status Runtime::keepFromChildren(void* address, Bytes size) {
  return apart(*this, [=, this] { return impl_->ranges->keepFromChildren(at(address), size); });
}

void Runtime::shareWithChildren(void* address, Bytes size) {
  apart(*this, [=, this] { impl_->ranges->shareWithChildren(at(address), size); });
}

bool Runtime::isKeptFromChildren(const void* address) const {
  return apart(*this, [=, this] { return impl_->ranges->isKeptFromChildren(at(address)); });
}

Status Runtime::keepFromDumps(void* address, Bytes size) {
  return apart(*this, [=, this] { return impl_->ranges->keepFromDumps(at(address), size); });
}

Status Runtime::dumpAgain(void* address, Bytes size) {
  return apart(*this, [=, this] { return impl_->ranges->dumpAgain(at(address), size); });
}

RangeSpan Runtime::dumpAdviceAt(const void* address, Bytes size) const {
  return apart(*this, [=, this] { return impl_->ranges->dumpAdviceAt(at(address), size); });
}

void Runtime::keepLocal(const void* address, Bytes size) {
  apart(*this, [=, this] { impl_->anchors->keep(at(address), size); });
}

bool Runtime::holdStill(const void* address) {
  return apart(*this, [=, this] { return impl_->anchors->hold(at(address)); });
}

void Runtime::letMove(const void* address) {
  apart(*this, [=, this] { impl_->anchors->letGo(at(address)); });
}

Status Runtime::protect(void* address, Bytes size, int protection) {
  return apart(*this, [=, this] { return impl_->ranges->protect(at(address), size, protection); });
}

Result<void*> Runtime::resize(void* address, Bytes old_size, Bytes new_size, Bytes alignment) {
  const auto moved = apart(*this, [=, this] {
    return impl_->ranges->resize(at(address), old_size, new_size, alignment);
  });
  if (!moved) return tl::unexpected(moved.error());
  return reinterpret_cast<void*>(*moved);
}

void Runtime::willNeed(void* address, Bytes size) {
  apart(*this, [=, this] { impl_->advice->willNeed(at(address), size); });
}

void Runtime::cold(void* address, Bytes size) {
  apart(*this, [=, this] { impl_->advice->cold(at(address), size); });
}

void Runtime::pageOut(void* address, Bytes size) {
  apart(*this, [=, this] { impl_->advice->pageOut(at(address), size); });
}

Status Runtime::place(void* address, Bytes size, Placement placement) {
  return apart(*this, [=, this] { return impl_->ranges->place(at(address), size, placement); });
}

Result<Residency> Runtime::residency(const void* address, Bytes size) const {
  return apart(*this, [=, this] { return impl_->ranges->residency(at(address), size); });
}

Status Runtime::chargeLocal(Bytes size) {
  TP_TRY(chargeLedger(impl_->core.outside, size, impl_->core.options.dram));
  impl_->core.need_memory.ring();
  return {};
}

void Runtime::dischargeLocal(Bytes size) { impl_->core.outside.discharge(size); }

void Runtime::noteRowsShort(Nanoseconds saved) {
  count(impl_->core.stats->rows_short_nanoseconds, saved.value());
}

Result<std::unique_ptr<RowStore>> Runtime::rowStore(size_t far_tier) {
  if (far_tier >= impl_->core.options.far_count) {
    return fail(ErrorCode::kNotFound, "there is no far tier %zu; %zu are given", far_tier + 1,
                impl_->core.options.far_count);
  }
  Tier* const tier = impl_->far[far_tier];
  auto store = tier != nullptr ? tier->rowStore() : nullptr;
  if (store != nullptr) return std::make_unique<ApartRows>(*this, std::move(store));
  const std::string_view kind = impl_->core.options.far[far_tier].kind->name;
  return fail(ErrorCode::kUnsupported, "far tier %zu (%.*s) lends no rows: name another tier",
              far_tier + 1, static_cast<int>(kind.size()), kind.data());
}

void Runtime::expectFilter() {
  apart(*this, [this] {
    Core& core = impl_->core;
    {
      MutexLock lock(core.tiers.listing());
      core.tiers.forEach([](uint8_t, Tier& tier) { tier.expectFilter(); });
    }
    MutexLock lock(core.rare_calls);
    core.calls_restricted = true;
  });
}

void Runtime::refreshStats() {
  if (impl_->migrator == nullptr) return;
  apart(*this, [this] { impl_->migrator->publish(); });
}

}  // namespace tidepool
