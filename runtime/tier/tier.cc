// SPDX-License-Identifier: Apache-2.0
// Names of tier kinds.
#include "runtime/tier/tier.h"

namespace tidepool {

const char* tierKindName(TierKind kind) {
  switch (kind) {
    case TierKind::kLocal:
      return "local";
    case TierKind::kDirect:
      return "direct";
    case TierKind::kFetch:
      return "fetch";
  }
  return "unknown";
}

}  // namespace tidepool
