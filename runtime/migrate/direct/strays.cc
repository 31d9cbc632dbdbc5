// SPDX-License-Identifier: Apache-2.0
// A hand over the granules with local pages, a system call a granule to ask, and one to move.
#include "runtime/migrate/direct/strays.h"

#include <algorithm>

#include "runtime/migrate/direct/granule_pages.h"
#include "runtime/os/numa.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kEvery(1'000'000'000);
// Asking costs some 50 us a granule: 0.3 % of a core. Where there are strays it is worth more.
constexpr uint64_t kLooks = 64;
constexpr uint64_t kMostLooks = 1024;

}  // namespace

bool Strays::onFarNode(int node) const {
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    const DirectTier* tier = core_.tiers.direct(number);
    if (tier != nullptr && node >= 0 && tier->node() == static_cast<uint32_t>(node)) return true;
  }
  return false;
}

void Strays::tick(Nanoseconds now) {
  if (now < next_) return;
  next_ = now + kEvery;
  bool any = false;
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    const DirectTier* tier = core_.tiers.direct(number);
    any = any || (tier != nullptr && tier->node().has_value());
  }
  if (!any) return;
  const GranuleIndex end = granuleOf(core_.space->highWater() + (kPagesPerGranule - 1));
  uint64_t looks = kLooks;
  for (uint64_t passed = 0; passed < end.value() && looks > 0; ++passed) {
    if (hand_ >= end) hand_ = GranuleIndex(0);
    const GranuleIndex granule = hand_;
    ++hand_;
    if (!core_.space->hasLocal(granule)) continue;
    --looks;
    // As many again as are found, up to a limit that the loop over granules sets as well.
    if (look(granule) > 0) looks = std::min(looks + 2, kMostLooks);
  }
}

uint64_t Strays::look(GranuleIndex index) {
  const GranuleLock granule(*core_.space, index);
  const PageSet local = placesOf(*core_.space, granule).local;
  size_t count = 0;
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    if (local[i]) {
      pages_[count++] = reinterpret_cast<void*>(core_.space->addressOf(firstPage(granule) + i));
    }
  }
  if (!core_.kernel->nodesOf({pages_.data(), count}, {nodes_.data(), count})) return 0;
  size_t strays = 0;
  for (size_t i = 0; i < count; ++i) {
    if (onFarNode(nodes_[i])) pages_[strays++] = pages_[i];
  }
  if (strays == 0) return 0;
  tidepool::count(core_.stats->strayed_pages, strays);
  const uint32_t here = os::currentNode();
  // Those that are pinned, or find no room, are asked again when the hand comes round.
  if (!core_.kernel->movePages({pages_.data(), strays}, here, {nodes_.data(), strays}))
    return strays;
  const auto back = std::count(nodes_.begin(), nodes_.begin() + strays, static_cast<int>(here));
  tidepool::count(core_.stats->returned_pages, static_cast<uint64_t>(back));
  return strays;
}

}  // namespace tidepool
