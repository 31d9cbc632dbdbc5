// SPDX-License-Identifier: Apache-2.0
// The Runtime's calls on memory, each handed to the part that does it. Thread-safe as the header
// says.
#include <sys/mman.h>

#include "runtime/local_charge.h"
#include "runtime/runtime_impl.h"
#include "runtime/tier/far_kind.h"

namespace tidepool {

Result<void*> Runtime::allocate(Bytes size, Bytes alignment, RangeUse use) {
  const auto address = impl_->ranges->allocate(size, alignment, use);
  if (!address) return tl::unexpected(address.error());
  return reinterpret_cast<void*>(*address);
}

Result<void*> Runtime::reserve(Bytes size, Bytes alignment) {
  const auto address = impl_->ranges->reserve(size, alignment);
  if (!address) return tl::unexpected(address.error());
  return reinterpret_cast<void*>(*address);
}

Status Runtime::reserveAt(void* address, Bytes size) {
  return impl_->ranges->reserveAt(reinterpret_cast<uintptr_t>(address), size);
}

Status Runtime::claim(void* address, Bytes size) {
  return impl_->ranges->claim(reinterpret_cast<uintptr_t>(address), size);
}

ProtectionSpan Runtime::spanAt(const void* address, Bytes size) const {
  return impl_->ranges->spanAt(reinterpret_cast<uintptr_t>(address), size);
}

OwnerSpan Runtime::ownerAt(const void* address, Bytes size) const {
  return impl_->ranges->ownerAt(reinterpret_cast<uintptr_t>(address), size);
}

bool Runtime::isEmpty(const void* address) const {
  return impl_->ranges->isEmpty(reinterpret_cast<uintptr_t>(address));
}

Status Runtime::release(void* address, Bytes size) {
  return impl_->ranges->release(reinterpret_cast<uintptr_t>(address), size);
}

Status Runtime::discard(void* address, Bytes size) {
  return impl_->ranges->discard(reinterpret_cast<uintptr_t>(address), size);
}

Status Runtime::renew(void* address, Bytes size) {
  TP_TRY(withdraw(address, size));
  return protect(address, size, PROT_READ | PROT_WRITE);
}

Status Runtime::withdraw(void* address, Bytes size) {
  return impl_->ranges->withdraw(reinterpret_cast<uintptr_t>(address), size);
}

Status Runtime::handOver(void* address, Bytes size) {
  return impl_->ranges->handOver(reinterpret_cast<uintptr_t>(address), size, *impl_->staging);
}

void Runtime::surrender(void* address, Bytes size) {
  impl_->ranges->surrender(reinterpret_cast<uintptr_t>(address), size);
}

Status Runtime::keepFromChildren(void* address, Bytes size) {
  return impl_->ranges->keepFromChildren(reinterpret_cast<uintptr_t>(address), size);
}

void Runtime::shareWithChildren(void* address, Bytes size) {
  impl_->ranges->shareWithChildren(reinterpret_cast<uintptr_t>(address), size);
}

bool Runtime::isKeptFromChildren(const void* address) const {
  return impl_->ranges->isKeptFromChildren(reinterpret_cast<uintptr_t>(address));
}

Status Runtime::keepFromDumps(void* address, Bytes size) {
  return impl_->ranges->keepFromDumps(reinterpret_cast<uintptr_t>(address), size);
}

Status Runtime::dumpAgain(void* address, Bytes size) {
  return impl_->ranges->dumpAgain(reinterpret_cast<uintptr_t>(address), size);
}

RangeSpan Runtime::dumpAdviceAt(const void* address, Bytes size) const {
  return impl_->ranges->dumpAdviceAt(reinterpret_cast<uintptr_t>(address), size);
}

void Runtime::keepLocal(const void* address, Bytes size) {
  impl_->anchors->keep(reinterpret_cast<uintptr_t>(address), size);
}

bool Runtime::holdStill(const void* address) {
  return impl_->anchors->hold(reinterpret_cast<uintptr_t>(address));
}

void Runtime::letMove(const void* address) {
  impl_->anchors->letGo(reinterpret_cast<uintptr_t>(address));
}

Status Runtime::protect(void* address, Bytes size, int protection) {
  return impl_->ranges->protect(reinterpret_cast<uintptr_t>(address), size, protection);
}

Result<void*> Runtime::resize(void* address, Bytes old_size, Bytes new_size, Bytes alignment) {
  const auto moved =
      impl_->ranges->resize(reinterpret_cast<uintptr_t>(address), old_size, new_size, alignment);
  if (!moved) return tl::unexpected(moved.error());
  return reinterpret_cast<void*>(*moved);
}

void Runtime::willNeed(void* address, Bytes size) {
  impl_->advice->willNeed(reinterpret_cast<uintptr_t>(address), size);
}

void Runtime::cold(void* address, Bytes size) {
  impl_->advice->cold(reinterpret_cast<uintptr_t>(address), size);
}

void Runtime::pageOut(void* address, Bytes size) {
  impl_->advice->pageOut(reinterpret_cast<uintptr_t>(address), size);
}

Status Runtime::place(void* address, Bytes size, Placement placement) {
  return impl_->ranges->place(reinterpret_cast<uintptr_t>(address), size, placement);
}

Result<Residency> Runtime::residency(const void* address, Bytes size) const {
  return impl_->ranges->residency(reinterpret_cast<uintptr_t>(address), size);
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
  if (store != nullptr) return store;
  const std::string_view kind = impl_->core.options.far[far_tier].kind->name;
  return fail(ErrorCode::kUnsupported, "far tier %zu (%.*s) lends no rows: name another tier",
              far_tier + 1, static_cast<int>(kind.size()), kind.data());
}

}  // namespace tidepool
