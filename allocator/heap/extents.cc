// SPDX-License-Identifier: Apache-2.0
// Taking and giving back granules. What is charged or promised to the budget of local memory is
// granted before memory is taken, and forgone after it is given back.
#include "allocator/heap/extents.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/os/memory.h"

namespace tidepool {
namespace {

// Smaller extents stay with their arena (emptied, so that they hold no memory).
constexpr uint64_t kReturnAbove = 8 * kMiB;

thread_local std::optional<Error> t_take_error;

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

std::optional<Error> Extents::takeError() { return std::exchange(t_take_error, std::nullopt); }

Extents::Extents(Context& context, MemorySource* source, HeapGround& ground, HeapPlan plan,
                 HeapNumber number)
    : context_(context),
      source_(source),
      ground_(ground),
      plan_(std::move(plan)),
      number_(number) {}

Extents::~Extents() {
  for (;;) {
    uintptr_t start = 0, end = 0;
    {
      MutexLock lock(mutex_);
      if (taken_.count() == 0) return;
      std::tie(start, end) = taken_.lowest();
    }
    giveBack(start, Bytes(end - start));
  }
}

void* Extents::take(Bytes size, Bytes alignment) {
  const Bytes rounded(roundUp(size.value(), kGranuleSize));
  alignment = std::max(alignment, Bytes(kGranuleSize));
  const auto start = isPlain() ? takePlain(rounded, alignment) : takeManaged(rounded, alignment);
  if (!start) {
    t_take_error = start.error();
    return nullptr;
  }
  (isPlain() ? ground_.plain : ground_.managed).set(*start, rounded, number_);
  return pointer(*start);
}

Result<uintptr_t> Extents::takePlain(Bytes size, Bytes alignment) {
  TP_TRY(context_.chargeLocal(size));
  const auto start = ground_.plain_range->take(size, alignment);
  if (!start) {
    context_.dischargeLocal(size);
    return start;
  }
  MutexLock lock(mutex_);
  TP_CHECK(!taken_.spanAt(*start, size.value()).inside);
  taken_.add(*start, *start + size.value());
  return start;
}

Result<uintptr_t> Extents::takeManaged(Bytes size, Bytes alignment) {
  const auto range = source_->allocate(size, alignment);
  if (!range) return tl::unexpected(range.error());
  const auto start = reinterpret_cast<uintptr_t>(*range);
  Status placed;
  {
    MutexLock lock(mutex_);
    TP_CHECK(start % kGranuleSize == 0 && !taken_.spanAt(start, size.value()).inside);
    taken_.add(start, start + size.value());
    placed = placeGranules(start, size);
  }
  if (placed) return start;
  giveBack(start, size);
  return tl::unexpected(placed.error());
}

Status Extents::placeGranules(uintptr_t start, Bytes size) {
  const std::vector<Placement>& turns = plan_.turns();
  if (turns.size() == 1 && turns[0].isFree()) return {};
  for (uintptr_t at = start; at < start + size.value(); at += kGranuleSize) {
    const Placement placement = turns[turn_++ % turns.size()];
    if (placement.isLocal()) {
      TP_TRY(context_.promiseLocal(Bytes(kGranuleSize)));
      kept_local_.add(at, at + kGranuleSize);
    }
    TP_TRY(source_->place(pointer(at), Bytes(kGranuleSize), placement));
  }
  return {};
}

Bytes Extents::keptLocal(uintptr_t start, Bytes size) const {
  uint64_t kept = 0;
  for (uintptr_t at = start; at < start + size.value(); at += kGranuleSize) {
    if (kept_local_.spanAt(at, kGranuleSize).inside) kept += kGranuleSize;
  }
  return Bytes(kept);
}

void Extents::giveBack(uintptr_t start, Bytes size) {
  Bytes kept;
  {
    MutexLock lock(mutex_);
    const IntervalSet::Span whole = taken_.spanAt(start, size.value());
    TP_CHECK(whole.inside && whole.size == size.value());
    kept = keptLocal(start, size);
    kept_local_.remove(start, start + size.value());
    taken_.remove(start, start + size.value());
  }
  if (isPlain()) {
    ground_.plain.set(start, size, 0);
    ground_.plain_range->give(start, size);
    context_.dischargeLocal(size);
    return;
  }
  ground_.managed.set(start, size, 0);
  // It was allocated: the only way for it to fail is a broken invariant.
  const Status released = source_->release(pointer(start), size);
  TP_CHECK(released.has_value());
  context_.forgoLocal(kept);
}

bool Extents::give(void* address, Bytes size) {
  const auto start = reinterpret_cast<uintptr_t>(address);
  if (size.value() < kReturnAbove || start % kGranuleSize != 0 ||
      size.value() % kGranuleSize != 0 || closing_.load(std::memory_order_relaxed)) {
    return false;
  }
  giveBack(start, size);
  return true;
}

bool Extents::discard(void* address, Bytes size) {
  if (closing_.load(std::memory_order_relaxed)) return true;
  if (isPlain()) return os::discard(reinterpret_cast<uintptr_t>(address), size).has_value();
  // Whole granules give up their places in direct tiers, too: somebody else may need them.
  const auto start = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = start + size.value();
  const uintptr_t first = std::min(end, roundUp(start, kGranuleSize));
  const uintptr_t last = std::max(first, roundDown(end, kGranuleSize));
  return discardPart(start, first) && renewPart(first, last) && discardPart(last, end);
}

bool Extents::discardPart(uintptr_t start, uintptr_t end) {
  return start == end || source_->discard(pointer(start), Bytes(end - start)).has_value();
}

bool Extents::renewPart(uintptr_t start, uintptr_t end) {
  return start == end || source_->renew(pointer(start), Bytes(end - start)).has_value();
}

Residency Extents::residency() const {
  Residency sum;
  MutexLock lock(mutex_);
  taken_.forEach([&](uintptr_t start, uintptr_t end) {
    const Bytes size(end - start);
    if (isPlain()) {
      sum.local += toPages(size);
    } else if (const auto part = source_->residency(pointer(start), size)) {
      sum += *part;
    }
  });
  return sum;
}

Bytes Extents::size() const {
  uint64_t sum = 0;
  MutexLock lock(mutex_);
  taken_.forEach([&](uintptr_t start, uintptr_t end) { sum += end - start; });
  return Bytes(sum);
}

}  // namespace tidepool
