// SPDX-License-Identifier: Apache-2.0
// Names of tier kinds, and what all tiers do alike.
#include "runtime/tier/tier.h"

#include "runtime/tier/frame_table.h"

namespace tidepool {

const char* tierKindName(TierKind kind) {
  switch (kind) {
    case TierKind::kLocal:
      return "local";
    case TierKind::kDirect:
      return "direct";
    case TierKind::kFetch:
      return "fetch";
    case TierKind::kCompressed:
      return "compressed";
  }
  return "unknown";
}

void Tier::close() { table().close(); }
void Tier::reopen() { table().reopen(); }
bool Tier::closed() const { return const_cast<Tier*>(this)->table().closed(); }
bool Tier::holdsNothing() const {
  return const_cast<Tier*>(this)->table().heldHere() == PageCount();
}

}  // namespace tidepool
