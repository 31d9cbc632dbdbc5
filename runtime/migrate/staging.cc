// SPDX-License-Identifier: Apache-2.0
// Set-up and recycling of the staging area.
#include "runtime/migrate/staging.h"

#include "runtime/os/memory.h"

namespace tidepool {
namespace {
constexpr Bytes kSize(Staging::kSegments* Staging::kSlotsPerSegment* kPageSize);
}

Result<std::unique_ptr<Staging>> Staging::create(FaultPort& port) {
  const auto base = os::reserve(kSize, Bytes(kGranuleSize));
  if (!base) return tl::unexpected(base.error());
  std::unique_ptr<Staging> staging(new Staging(*base));
  TP_TRY(staging->renew(port));
  return staging;
}

Status Staging::renew(FaultPort& port) {
  TP_TRY(os::mapFresh(base_, kSize));
  // UFFDIO_MOVE needs its target armed. Without MOVE pages are copied in, into ordinary memory.
  if (port.canMove()) TP_TRY(port.arm(base_, kSize));
  return {};
}

Staging::~Staging() { os::unmap(base_, kSize); }

void Staging::recycle(uint64_t first, PageCount slots) {
  [[maybe_unused]] const Status freed = os::discard(slotAddress(first), toBytes(slots));
}

}  // namespace tidepool
