// SPDX-License-Identifier: Apache-2.0
// What all decoders have to stand: answers that are cut off, at every length.
#pragma once

#include <gtest/gtest.h>

#include "fabricmgr/cxl/fmapi/payload.h"
#include "runtime/base/result.h"

namespace tidepool::cxl::fmapi {

/// Each shorter form of a good answer is refused, and no byte behind its end is read: every form
/// has memory of its own, so that the address sanitizer sees.
template <typename Decode>
inline void refusesEveryCut(PayloadView good, size_t least, Decode decode) {
  ASSERT_TRUE(decode(good)) << decode(good).error().text();
  for (size_t length = 0; length < good.size(); ++length) {
    const Payload cut(good.begin(), good.begin() + static_cast<long>(length));
    const auto result = decode(cut);
    ASSERT_EQ(result.has_value(), length >= least) << length << " bytes";
    if (!result) {
      ASSERT_EQ(result.error().code(), ErrorCode::kCorrupt);
    }
  }
}

}  // namespace tidepool::cxl::fmapi
