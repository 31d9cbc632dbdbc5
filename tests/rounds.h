// SPDX-License-Identifier: Apache-2.0
// How often a test tries what only more rounds can find.
#pragma once

#include <cstdlib>

namespace tidepool {

/// `few` in a check, `many` in `make soak`, which sets TIDEPOOL_LONG.
inline int rounds(int few, int many) { return std::getenv("TIDEPOOL_LONG") ? many : few; }

}  // namespace tidepool
