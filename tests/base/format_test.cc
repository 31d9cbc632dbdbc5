// SPDX-License-Identifier: Apache-2.0
// The formatter against libc's, for every conversion it knows, and at the edges of the buffer.
#include "runtime/base/format.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdio>
#include <string>

namespace tidepool {
namespace {

template <typename... T>
void expectSame(const char* format, T... values) {
  char ours[256], libc[256];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
  const size_t length = formatText(ours, sizeof ours, format, values...);
  snprintf(libc, sizeof libc, format, values...);
#pragma GCC diagnostic pop
  EXPECT_STREQ(ours, libc);
  EXPECT_EQ(length, strlen(ours));
}

TEST(Format, AgreesWithLibc) {
  expectSame("plain, 100%%");
  expectSame("%s and %.*s%c", "text", 3, "cut off", '!');
  expectSame("%.80s|%.3s|%.12s|%.s|%.0s|", "shorter", "cut off", "cut after a dozen", "no", "none");
  expectSame("%d %i %u", -7, 0, 7u);
  expectSame("%ld %lld %lu %llu", INT64_MIN, -1LL, UINT64_MAX, 0ULL);
  expectSame("%zu %x %lx", SIZE_MAX, 0xbeefu, 0xdeadbeefcafeUL);
}

TEST(Format, CutsAtTheBufferAndAlwaysEndsTheText) {
  char out[8];
  EXPECT_EQ(formatText(out, sizeof out, "%s", "longer than the buffer"), 7u);
  EXPECT_STREQ(out, "longer ");
  EXPECT_EQ(formatText(out, 1, "x"), 0u);
  EXPECT_STREQ(out, "");
}

TEST(Format, LeavesWhatItDoesNotKnow) {
  char out[32];
  const char* unknown = "50%q left";  // a variable, so that the compiler's own check is not asked
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-security"
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  formatText(out, sizeof out, unknown);
#pragma GCC diagnostic pop
  EXPECT_STREQ(out, "50%q left");
}

TEST(Format, DescribesErrors) {
  EXPECT_STREQ(errnoText(ENOENT), "No such file or directory");
  EXPECT_STREQ(errnoText(123456), "unknown error");
}

RC_GTEST_PROP(Format, AnyNumberAgreesWithLibc, (int64_t number)) {
  char ours[64], libc[64];
  formatText(ours, sizeof ours, "%lld|%llu|%llx", static_cast<long long>(number),
             static_cast<unsigned long long>(number), static_cast<unsigned long long>(number));
  snprintf(libc, sizeof libc, "%lld|%llu|%llx", static_cast<long long>(number),
           static_cast<unsigned long long>(number), static_cast<unsigned long long>(number));
  RC_ASSERT(std::string(ours) == libc);
}

}  // namespace
}  // namespace tidepool
