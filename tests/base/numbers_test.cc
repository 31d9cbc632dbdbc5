// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/numbers.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace {

TEST(Numbers, ReadsThemOneByOne) {
  const char* text = " 12\t7 18446744073709551615 x";
  EXPECT_EQ(numberAt(text, &text), 12u);
  EXPECT_EQ(numberAt(text, &text), 7u);
  EXPECT_EQ(numberAt(text, &text), UINT64_MAX);
  const char* const rest = text;
  EXPECT_EQ(numberAt(text, &text), 0u);
  EXPECT_EQ(text, rest);
}

TEST(Numbers, WhatIsNoneIsZero) {
  for (const char* text : {"", " ", "-1", "+1", "x1", "18446744073709551616"}) {
    const char* end = nullptr;
    EXPECT_EQ(numberAt(text, &end), 0u) << text;
    EXPECT_EQ(end, text);
  }
  EXPECT_EQ(numberAt("0x10"), 0u);
}

TEST(Numbers, TakesWholeTextsOnly) {
  EXPECT_EQ(wholeNumber("0"), 0u);
  EXPECT_EQ(wholeNumber("65535"), 65535u);
  for (const char* text : {"", " 1", "1 ", "1x", "-1", "18446744073709551616"}) {
    EXPECT_EQ(wholeNumber(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tidepool
