// SPDX-License-Identifier: Apache-2.0
// Starting a runtime: what cannot be had is a clear error, and an error leaves nothing behind.
#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "tests/entries.h"
#include "tests/migrate/fixture.h"

namespace tidepool {
namespace {

uint64_t addressSpacePages() {
  unsigned long total = 0;
  FILE* file = fopen("/proc/self/statm", "re");
  EXPECT_EQ(fscanf(file, "%lu", &total), 1);
  fclose(file);
  return total;
}

/// What a process holds that a failed start could leave behind.
struct Holdings {
  size_t descriptors = entries("/proc/self/fd");
  size_t threads = entries("/proc/self/task");
  uint64_t pages = addressSpacePages();
};

Options optionsWith(const FarKind* kind, const char* target, Bytes size) {
  Options options;
  options.dram = Bytes(8 * kMiB);
  options.budget_scope = BudgetScope::kManaged;
  options.space = Bytes(64 * kGiB);
  options.remote_timeout = Nanoseconds(2'000'000'000);
  options.far_count = 1;
  options.far[0].kind = kind;
  options.far[0].size = size;
  snprintf(options.far[0].target, sizeof options.far[0].target, "%s", target);
  return options;
}

struct Case {
  const char* name;
  Options options;
  ErrorCode code;
  const char* says;  // part of the text
};

std::vector<Case> failures() {
  Options numa = optionsWith(farKind("numa"), "", Bytes());
  numa.far[0].node = 3;
  Options huge = optionsWith(farKind("cxl"), "", Bytes(64 * kMiB));
  huge.space = Bytes(uint64_t{1} << 60);
  Options second = optionsWith(farKind("cxl"), "", Bytes(64 * kMiB));
  second.far_count = 2;
  Options fabric = optionsWith(farKind("fabric"), "", Bytes());
  snprintf(fabric.agent, sizeof fabric.agent, "/no/agent");
  second.far[1] = optionsWith(farKind("dax"), "/dev/null", Bytes()).far[0];
  return {
      {"numa", numa, ErrorCode::kNotFound, "numa:3"},
      {"no agent", fabric, ErrorCode::kUnreachable, "/no/agent"},
      {"no such dax", optionsWith(farKind("dax"), "/dev/dax77.7", Bytes()), ErrorCode::kNotFound,
       "/dev/dax77.7"},
      {"not a dax", optionsWith(farKind("dax"), "/dev/null", Bytes()), ErrorCode::kInvalidArgument,
       "device-DAX"},
      {"nobody there", optionsWith(farKind("remote"), "127.0.0.1:1", Bytes()),
       ErrorCode::kUnreachable, "127.0.0.1:1"},
      {"no address", optionsWith(farKind("remote"), "127.0.0.1", Bytes()),
       ErrorCode::kInvalidArgument, "127.0.0.1"},
      {"space beyond the machine", huge, ErrorCode::kNoMemory, "space:"},
      {"the second tier fails", second, ErrorCode::kInvalidArgument, "/dev/null"},
  };
}

TEST(Start, WhatCannotBeIsAClearErrorAndLeavesNothing) {
  // Once first: what libraries set up on first use is not ours to count, and the address space of
  // our own that a start reserves is kept for the next one.
  for (const Case& failing : failures()) static_cast<void>(Runtime::start(failing.options));
  for (const Case& failing : failures()) {
    const Holdings before;
    const auto runtime = Runtime::start(failing.options);
    ASSERT_FALSE(runtime) << failing.name;
    EXPECT_EQ(runtime.error().code(), failing.code)
        << failing.name << ": " << runtime.error().text();
    EXPECT_NE(strstr(runtime.error().text(), failing.says), nullptr)
        << failing.name << ": " << runtime.error().text();
    const Holdings after;
    EXPECT_EQ(after.descriptors, before.descriptors) << failing.name;
    EXPECT_EQ(after.threads, before.threads) << failing.name;
    // A little for what malloc keeps; the smallest of our mappings is larger.
    EXPECT_LT(after.pages, before.pages + kPagesPerGranule / 2) << failing.name;
  }
}

TEST(Start, AServerThatIsFullIsAClearError) {
  memserver::ServerOptions server_options;
  server_options.size = Bytes(8 * kMiB);
  auto server = memserver::Server::start(server_options);
  ASSERT_TRUE(server);
  char target[32];
  snprintf(target, sizeof target, "127.0.0.1:%u", (*server)->port());
  const auto runtime = Runtime::start(optionsWith(farKind("remote"), target, Bytes(64 * kMiB)));
  ASSERT_FALSE(runtime);
  EXPECT_EQ(runtime.error().code(), ErrorCode::kNoSpace);
  EXPECT_NE(strstr(runtime.error().text(), target), nullptr) << runtime.error().text();
}

TEST(Start, StartingAndEndingManyTimesLeavesNothing) {
  static_cast<void>(
      TestRuntime::start({Far::kDirect, Eviction::kMove}, Bytes(8 * kMiB), Bytes(32 * kMiB)));
  const Holdings before;
  for (int round = 0; round < 10; ++round) {
    for (const Far far : {Far::kDirect, Far::kRemote}) {
      TestRuntime test =
          TestRuntime::start({far, Eviction::kMove}, Bytes(8 * kMiB), Bytes(32 * kMiB));
      ASSERT_NE(test.runtime, nullptr);
      auto memory = test.runtime->allocate(Bytes(16 * kMiB), Bytes(kPageSize));
      ASSERT_TRUE(memory);
      memset(*memory, 1, 16 * kMiB);
    }
  }
  const Holdings after;
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
  // Stacks of ended threads and arenas are libc's to keep; the spaces, 64 GiB each, are not.
  EXPECT_LT(after.pages, before.pages + kGiB / kPageSize);
}

TEST(Start, ARuntimeWithoutFarMemoryOrBudgetIsJustMemory) {
  Options options;
  options.space = Bytes(4 * kGiB);
  auto runtime = Runtime::start(options);
  ASSERT_TRUE(runtime) << runtime.error().text();
  auto memory = (*runtime)->allocate(Bytes(64 * kMiB), Bytes(kPageSize));
  ASSERT_TRUE(memory);
  memset(*memory, 1, 64 * kMiB);
  EXPECT_TRUE((*runtime)->release(*memory, Bytes(64 * kMiB)));
}

TEST(Start, ABudgetWithoutFarMemoryIsExceededNotHungOn) {
  Options options;
  options.space = Bytes(4 * kGiB);
  options.dram = Bytes(4 * kMiB);
  options.budget_scope = BudgetScope::kManaged;
  auto runtime = Runtime::start(options);
  ASSERT_TRUE(runtime) << runtime.error().text();
  auto memory = (*runtime)->allocate(Bytes(64 * kMiB), Bytes(kPageSize));
  ASSERT_TRUE(memory);
  memset(*memory, 1, 64 * kMiB);
}

}  // namespace
}  // namespace tidepool
