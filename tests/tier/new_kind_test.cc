// SPDX-License-Identifier: Apache-2.0
// A new kind of far memory (memory_tier.cc) is a file and a row: programs' pages go there and come
// back, in children of fork() too, with no other line of the runtime knowing of it. CMakeLists.txt
// adds the tests of kinds and options to this program: they cover the new row as it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "runtime/runtime.h"
#include "runtime/tier/far_kind.h"

namespace tidepool {
namespace {

constexpr size_t kSize = 24 * kMiB;

/// The pages whose number in the memory is another.
size_t wrongPages(const std::byte* memory) {
  size_t wrong = 0;
  for (size_t page = 0; page < kSize / kPageSize; ++page) {
    size_t found;
    memcpy(&found, memory + page * kPageSize, sizeof found);
    wrong += found == page ? 0 : 1;
  }
  return wrong;
}

TEST(NewKind, PagesGoToItAndComeBackInAChildToo) {
  const auto options =
      parseOptions("dram:4M,far:memory:64M,compress:off,budget_scope:managed,space:64G",
                   [](const char*) { FAIL(); });
  ASSERT_TRUE(options) << options.error().text();
  auto runtime = Runtime::start(*options);
  ASSERT_TRUE(runtime) << runtime.error().text();
  const auto memory = (*runtime)->allocate(Bytes(kSize), Bytes(kPageSize), RangeUse::kHeap);
  ASSERT_TRUE(memory) << memory.error().text();
  auto* const bytes = static_cast<std::byte*>(*memory);
  for (size_t page = 0; page < kSize / kPageSize; ++page) {
    memcpy(bytes + page * kPageSize, &page, sizeof page);
  }
  EXPECT_EQ(wrongPages(bytes), 0u);
  const pid_t child = fork();
  if (child == 0) _exit(wrongPages(bytes) == 0 ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(wrongPages(bytes), 0u);
  (*runtime)->refreshStats();
  const StatsPage& stats = (*runtime)->stats();
  EXPECT_STREQ(stats.tiers[1].name, "memory");
  EXPECT_STREQ(stats.tiers[1].kind, "fetch");
  EXPECT_GT(stats.tiers[1].writes_bytes, kSize / 2);
  EXPECT_GT(stats.tiers[1].reads_bytes, kSize / 2);
}

TEST(NewKind, ItsRowsAreRefusedWithAReason) {
  const auto options =
      parseOptions("dram:4M,far:memory:4M,budget_scope:managed,space:64G", nullptr);
  ASSERT_TRUE(options);
  auto runtime = Runtime::start(*options);
  ASSERT_TRUE(runtime) << runtime.error().text();
  const auto rows = (*runtime)->rowStore(0);
  ASSERT_FALSE(rows);
  EXPECT_EQ(rows.error().code(), ErrorCode::kUnsupported);
  EXPECT_STREQ(rows.error().text(), "far tier 1 (memory) lends no rows: name another tier");
}

}  // namespace
}  // namespace tidepool
