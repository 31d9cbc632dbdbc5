// SPDX-License-Identifier: Apache-2.0
// The parts that move pages between local DRAM and direct tiers, put together.
#pragma once

#include <memory>

#include "runtime/migrate/direct/demoter.h"
#include "runtime/migrate/direct/home_changes.h"

namespace tidepool {

/// Each uses the ones before it alone. Each says which threads may call it; none touches managed
/// memory.
struct GranuleMover {
  /// Errors: kNoMemory.
  static Result<std::unique_ptr<GranuleMover>> create(Core& core) {
    auto area = TransferArea::reserve();
    if (!area) return tl::unexpected(area.error());
    auto mover = std::make_unique<GranuleMover>(core, std::move(*area));
    TP_TRY(mover->renew());
    mover->whole.tierCame();
    return mover;
  }
  GranuleMover(Core& core, Mapping area)
      : homes(core, closing),
        transfer(core, std::move(area)),
        whole(core, homes, transfer),
        demoter(core, homes, transfer, whole),
        promoter(core, closing, homes, transfer, whole),
        changes(core, closing, homes, transfer, whole, promoter) {}
  /// In a child of fork().
  Status renew() {
    whole.renew();
    return transfer.renew();
  }

  ClosingGranules closing;
  GranuleHomes homes;
  TransferArea transfer;
  WholeGranules whole;
  Demoter demoter;
  Promoter promoter;
  HomeChanges changes;
};

}  // namespace tidepool
