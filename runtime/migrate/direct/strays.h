// SPDX-License-Identifier: Apache-2.0
// Local pages that lie on the node of a numa: tier: the kernel put them there when local memory was
// short, or demoted them. They count as local, so they are moved back, by move_pages in batches of
// a granule; what became of each page is checked. On the migrator's thread; touches no page.
#pragma once

#include <array>

#include "runtime/migrate/core/core.h"

namespace tidepool {

class Strays {
 public:
  explicit Strays(Core& core) : core_(core) {}
  /// Looks at some granules once a second, at more while there are strays. Nothing without a numa:
  /// tier.
  void tick(Nanoseconds now);

 private:
  /// Moves back what has strayed of a granule's local pages; returns how many had.
  uint64_t look(GranuleIndex granule);
  bool onFarNode(int node) const;

  Core& core_;
  Nanoseconds next_;
  GranuleIndex hand_;
  std::array<void*, kPagesPerGranule> pages_;
  std::array<int, kPagesPerGranule> nodes_;
};

}  // namespace tidepool
