// SPDX-License-Identifier: Apache-2.0
// FabricRegion: from the agent's pieces to tiers.
#include "allocator/fabric/fabric_region.h"

#include <sys/mman.h>

#include <algorithm>

#include "runtime/tier/fabric_tiers.h"

namespace tidepool {
Result<std::unique_ptr<FabricRegion>> FabricRegion::attach(const AgentNotice& notice,
                                                           const Patience& patience) {
  auto region = std::make_unique<FabricRegion>();
  region->id = notice.region;
  region->epoch = notice.epoch;
  region->size = notice.size;
  Bytes start;
  for (size_t at = 0; at < notice.pieces.size();) {
    Part part;
    part.start = start;
    size_t end = at + 1;
    if (notice.pieces[at].kind == agent_wire::PieceKind::kFile) {
      while (end < notice.pieces.size() && notice.pieces[end].kind == agent_wire::PieceKind::kFile)
        ++end;
      auto tier = tierOverFiles(notice.pieces.subspan(at, end - at), notice.files, notice.region);
      if (!tier) return tl::unexpected(tier.error());
      // A child of fork() has no right to it, and must not see what becomes of it after us.
      (void)madvise((*tier)->frameMemory(FrameIndex(0)), (*tier)->capacity().value(),
                    MADV_DONTFORK);
      part.direct = std::move(*tier);
    } else {
      auto tier = tierOverServer(notice.pieces[at], notice.region, notice.epoch, patience);
      if (!tier) return tl::unexpected(tier.error());
      part.remote = std::move(*tier);
    }
    start += part.tier().capacity();
    region->parts.push_back(std::move(part));
    at = end;
  }
  return region;
}

void FabricRegion::forsake(Bytes from) {
  for (const Part& part : parts) {
    const Bytes left =
        from > part.start ? std::min(from - part.start, part.tier().capacity()) : Bytes();
    part.tier().close();
    if (left < part.tier().capacity()) part.tier().forsake(FrameIndex(toPages(left).value()));
  }
}

void FabricRegion::putIn(RegionHold& hold) {
  for (const Part& part : parts) {
    if (part.direct) hold.add(*part.direct);
  }
}

void FabricRegion::takeOut(RegionHold& hold) {
  for (const Part& part : parts) {
    if (part.direct) hold.remove(*part.direct);
  }
}

Bytes FabricRegion::used() const {
  Bytes used;
  for (const Part& part : parts) used += part.tier().used();
  return used;
}

Bytes FabricRegion::capacity() const {
  Bytes all;
  for (const Part& part : parts) all += part.tier().capacity();
  return all;
}

}  // namespace tidepool
