// SPDX-License-Identifier: Apache-2.0
// By which ways pages reach a tier that has more than one: what a tier counts and statistics show.
// Plain values.
#pragma once

#include <cstdint>

namespace tidepool {

/// By which ways a tier's pages go just now. kNone: no connection, or no such tier.
enum class PageWays : uint8_t { kNone = 0, kTcp = 1, kVerbs = 2, kBoth = 3 };

/// "tcp", "verbs", "verbs and tcp"; empty for kNone.
inline const char* pageWaysName(PageWays ways) {
  switch (ways) {
    case PageWays::kTcp:
      return "tcp";
    case PageWays::kVerbs:
      return "verbs";
    case PageWays::kBoth:
      return "verbs and tcp";
    case PageWays::kNone:
      break;
  }
  return "";
}

}  // namespace tidepool
