// SPDX-License-Identifier: Apache-2.0
// Reservation of the managed space and of its page words.
#include "runtime/space/managed_space.h"

#include <algorithm>
#include <bit>
#include <memory>

#include "runtime/os/memory.h"

namespace tidepool {

constexpr uint64_t kLargestAlignment = 64 * kGiB;

const char* pageStateName(PageState state) {
  static constexpr const char* kNames[kPageStates] = {"empty",    "local",  "evicting", "far",
                                                      "fetching", "direct", "lost"};
  return kNames[static_cast<int>(state)];
}

Result<std::unique_ptr<ManagedSpace>> ManagedSpace::create(Bytes size) {
  const Bytes rounded(roundUp(size.value(), kGranuleSize));
  auto words = Mapping::anonymous(Bytes(toPages(rounded).value() * sizeof(uint64_t)));
  auto local = Mapping::anonymous(Bytes((rounded.value() >> kGranuleShift) * sizeof(uint16_t)));
  if (!words || !local) {
    return fail(ErrorCode::kNoMemory,
                "cannot reserve the metadata of a space of %llu GiB; lower it with --conf "
                "space:SIZE or raise RLIMIT_AS",
                static_cast<unsigned long long>(size.value() / kGiB));
  }
  // Alignments of allocations are relative to the base, so it is aligned as far as any can ask.
  const Bytes alignment(std::min(std::bit_floor(rounded.value()), kLargestAlignment));
  const auto base = os::reserve(rounded, alignment);
  if (!base) return tl::unexpected(base.error());
  return std::unique_ptr<ManagedSpace>(
      new ManagedSpace(*base, rounded, std::move(*words), std::move(*local)));
}

ManagedSpace::ManagedSpace(uintptr_t base, Bytes size, Mapping words, Mapping local)
    : base_(base),
      size_(size),
      words_mapping_(std::move(words)),
      words_(reinterpret_cast<std::atomic<uint64_t>*>(words_mapping_.data())),
      local_(std::move(local)),
      ranges_(size) {
  // Nothing is handed out yet.
  protections_.set(base_, size_, kNotHandedOut);
}

ManagedSpace::~ManagedSpace() { os::unmap(base_, size_); }

void ManagedSpace::raiseHighWater(PageIndex end) {
  uint64_t seen = high_water_.load(std::memory_order_relaxed);
  while (seen < end.value() &&
         !high_water_.compare_exchange_weak(seen, end.value(), std::memory_order_relaxed)) {
  }
}

}  // namespace tidepool
