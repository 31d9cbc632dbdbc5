// SPDX-License-Identifier: Apache-2.0
// Set-up and recycling of the staging area.
#include "runtime/migrate/core/staging.h"

namespace tidepool {
namespace {
constexpr Bytes kSize(Staging::kSegments* Staging::kSlotsPerSegment* kPageSize);
}

Result<std::unique_ptr<Staging>> Staging::create(FaultPort& port, Kernel& kernel) {
  auto area = Mapping::reserved(kSize, Bytes(kGranuleSize));
  if (!area) return tl::unexpected(area.error());
  std::unique_ptr<Staging> staging(new Staging(std::move(*area), kernel));
  TP_TRY(staging->renew(port));
  return staging;
}

Status Staging::renew(FaultPort& port) {
  TP_TRY(kernel_.mapFresh(base(), kSize));
  kernel_.leaveOutOfDumps(base(), kSize);
  // UFFDIO_MOVE needs its target armed. Without MOVE pages are copied in, into ordinary memory.
  if (port.canMove()) TP_TRY(port.arm(base(), kSize));
  return {};
}

void Staging::recycle(uint64_t first, PageCount slots) {
  TP_CHECK_OP(first % kSlotsPerSegment + slots.value(), <=, kSlotsPerSegment);
  [[maybe_unused]] const Status freed = kernel_.discard(slotAddress(first), toBytes(slots));
}

}  // namespace tidepool
