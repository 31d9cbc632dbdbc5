// SPDX-License-Identifier: Apache-2.0
// What the C API says to wrong arguments: a precise error for each, and nothing has changed.
#include <cstring>
#include <thread>

#include "allocator/capi/handles.h"
#include "tests/allocator/fixture.h"

namespace tidepool {
namespace {

bool says(const char* part) { return strstr(tidepool_error_text(), part) != nullptr; }

TEST(Results, HaveNames) {
  EXPECT_STREQ(tidepool_status_name(TIDEPOOL_OK), "ok");
  EXPECT_STREQ(tidepool_status_name(TIDEPOOL_NO_SPACE), "no-space");
  EXPECT_STREQ(tidepool_status_name(TIDEPOOL_REFUSED), "refused");
  EXPECT_STREQ(tidepool_status_name(TIDEPOOL_CLOSED), "closed");
  EXPECT_STREQ(tidepool_status_name(static_cast<tidepool_status>(99)), "unknown");
  for (int status = 0; status <= TIDEPOOL_CLOSED; ++status) {
    EXPECT_STRNE(tidepool_status_name(static_cast<tidepool_status>(status)), "unknown") << status;
  }
  EXPECT_STREQ(tidepool_version(), "0.1.0");
}

TEST(Results, AreEachThreadsOwn) {
  EXPECT_EQ(tidepool_close(nullptr), TIDEPOOL_INVALID_ARGUMENT);
  std::thread([] {
    EXPECT_EQ(tidepool_error_status(), TIDEPOOL_OK);
    EXPECT_STREQ(tidepool_error_text(), "");
  }).join();
  EXPECT_EQ(tidepool_error_status(), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_STREQ(tidepool_error_text(), "context is NULL");
}

TEST(Options, RefuseWhatTheyDoNotKnow) {
  tidepool_options* options = nullptr;
  EXPECT_EQ(tidepool_options_create("dram:2G", nullptr), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_options_create("dram:1x", &options), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_options_create("dran:2G", &options), TIDEPOOL_NOT_FOUND);
  EXPECT_TRUE(says("'dram'")) << tidepool_error_text();
  EXPECT_EQ(options, nullptr);
  ASSERT_EQ(tidepool_options_create(nullptr, &options), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_options_set(options, "dram", "64M"), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_options_set(options, "dram", "many"), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_options_set(options, "colour", "red"), TIDEPOOL_NOT_FOUND);
  EXPECT_EQ(tidepool_options_set(nullptr, "dram", "64M"), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_options_set(options, nullptr, "64M"), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_options_set(options, "dram", nullptr), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_options_set(options, "far", "cxl:64M"), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_options_set(options, "far", "tape:64M"), TIDEPOOL_INVALID_ARGUMENT);
  tidepool_context* context = nullptr;
  ASSERT_EQ(tidepool_open(options, &context), TIDEPOOL_OK);
  EXPECT_EQ(infoOf(context).budget_bytes, 64 * kMiB) << "as it was before the bad value";
  EXPECT_EQ(infoOf(context).far_tiers, 1u);
  EXPECT_EQ(tidepool_close(context), TIDEPOOL_OK);
  tidepool_options_free(options);
  tidepool_options_free(nullptr);
}

TEST(Contexts, OfAProcessShareOneSetOfOptions) {
  tidepool_context* const first = TestContext::openWith("dram:64M");
  tidepool_options* options = nullptr;
  ASSERT_EQ(tidepool_options_create("dram:65M", &options), TIDEPOOL_OK);
  tidepool_context* second = nullptr;
  EXPECT_EQ(tidepool_open(options, &second), TIDEPOOL_CONFLICT);
  EXPECT_TRUE(says("one budget a process")) << tidepool_error_text();
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(tidepool_open(nullptr, &second), TIDEPOOL_OK);
  EXPECT_EQ(infoOf(second).budget_bytes, 64 * kMiB);
  tidepool_context* const third = TestContext::openWith("dram:65536K");
  EXPECT_EQ(tidepool_close(first), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_close(first), TIDEPOOL_CLOSED);
  EXPECT_EQ(tidepool_close(second), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_close(third), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_open(options, &second), TIDEPOOL_OK) << "nobody is left to contradict";
  EXPECT_EQ(tidepool_close(second), TIDEPOOL_OK);
  tidepool_options_free(options);
}

TEST(Contexts, StayOpenWhileTheyAreUsed) {
  tidepool_context* const context = TestContext::openWith("dram:64M");
  tidepool_heap_params params = TIDEPOOL_HEAP_PARAMS_INIT;
  params.policy = TIDEPOOL_PINNED;
  params.tier = "local";
  tidepool_heap* heap = nullptr;
  ASSERT_EQ(tidepool_heap_create(context, &params, &heap), TIDEPOOL_OK) << tidepool_error_text();
  EXPECT_EQ(tidepool_close(context), TIDEPOOL_CONFLICT);
  EXPECT_EQ(infoOf(context).users, 1u);
  EXPECT_NE(tidepool_alloc(heap, 100), nullptr);
  EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_CLOSED);
  EXPECT_EQ(tidepool_alloc(heap, 100), nullptr);
  EXPECT_EQ(tidepool_error_status(), TIDEPOOL_CLOSED);
  EXPECT_EQ(tidepool_close(context), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_heap_create(context, &params, &heap), TIDEPOOL_CLOSED);
}

TEST(Contexts, GiveTheirStatisticsAsText) {
  tidepool_context* const context = TestContext::openWith("dram:64M");
  size_t needed = 0;
  EXPECT_EQ(tidepool_stats_json(context, nullptr, 0, &needed), TIDEPOOL_NO_SPACE);
  ASSERT_GT(needed, 100u);
  std::string text(needed, 'x');
  EXPECT_EQ(tidepool_stats_json(context, text.data(), needed - 1, nullptr), TIDEPOOL_NO_SPACE);
  EXPECT_EQ(text[0], 'x');
  EXPECT_EQ(tidepool_stats_json(context, nullptr, 10, nullptr), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_stats_json(context, text.data(), text.size(), nullptr), TIDEPOOL_OK);
  EXPECT_EQ(text[0], '{');
  EXPECT_NE(text.find("\"dram_budget_bytes\":67108864"), std::string::npos) << text;
  EXPECT_EQ(tidepool_close(context), TIDEPOOL_OK);
}

TEST(Contexts, FillInWhatTheCallerKnows) {
  tidepool_context* const context = TestContext::openWith("dram:64M");
  tidepool_context_info info;
  memset(&info, 0xee, sizeof info);
  info.struct_size = offsetof(tidepool_context_info, budget_bytes);
  EXPECT_EQ(tidepool_context_get_info(context, &info), TIDEPOOL_OK);
  EXPECT_EQ(info.far_tiers, 0u);
  EXPECT_EQ(info.budget_bytes, 0xeeeeeeeeeeeeeeeeu) << "beyond what an older header has";
  info.struct_size = 3;
  EXPECT_EQ(tidepool_context_get_info(context, &info), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_TRUE(says("struct_size is 3"));
  EXPECT_EQ(tidepool_context_get_info(context, nullptr), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_close(context), TIDEPOOL_OK);
}

class HeapArguments : public testing::Test {
 protected:
  HeapArguments()
      : test_(TestContext::open(FarMemory::kCxl, Bytes(32 * kMiB), Bytes(64 * kMiB))),
        heap_(test_.makeHeap()),
        other_(test_.makePinned("local")) {}
  ~HeapArguments() override {
    EXPECT_EQ(tidepool_heap_destroy(heap_), TIDEPOOL_OK);
    EXPECT_EQ(tidepool_heap_destroy(other_), TIDEPOOL_OK);
  }
  TestContext test_;
  tidepool_heap* const heap_;
  tidepool_heap* const other_;
};

TEST_F(HeapArguments, SizesThatCannotBe) {
  EXPECT_EQ(tidepool_alloc(heap_, SIZE_MAX), nullptr);
  EXPECT_EQ(tidepool_error_status(), TIDEPOOL_NO_MEMORY);
  EXPECT_EQ(tidepool_alloc(heap_, size_t{1} << 46), nullptr);
  EXPECT_EQ(tidepool_error_status(), TIDEPOOL_NO_MEMORY) << tidepool_error_text();
  EXPECT_EQ(tidepool_calloc(heap_, SIZE_MAX / 2, 3), nullptr);
  EXPECT_EQ(tidepool_error_status(), TIDEPOOL_INVALID_ARGUMENT);
  for (const size_t alignment : {size_t{0}, size_t{3}, size_t{2 * kGiB}}) {
    EXPECT_EQ(tidepool_aligned_alloc(heap_, alignment, 1), nullptr);
    EXPECT_EQ(tidepool_error_status(), TIDEPOOL_INVALID_ARGUMENT) << alignment;
  }
  void* const nothing = tidepool_alloc(heap_, 0);
  EXPECT_NE(nothing, nullptr);
  EXPECT_EQ(tidepool_free(heap_, nothing), TIDEPOOL_OK);
  const tidepool_heap_stats stats = statsOf(heap_);
  EXPECT_EQ(stats.allocations, 1u);
  EXPECT_EQ(stats.allocated_bytes, 0u);
}

TEST_F(HeapArguments, BlocksOfSomebodyElse) {
  auto* const block = static_cast<char*>(tidepool_alloc(heap_, 1000));
  strcpy(block, "unchanged");
  int local = 0;
  void* const mallocs = malloc(10);
  for (void* stranger : {static_cast<void*>(block), static_cast<void*>(&local), mallocs}) {
    EXPECT_EQ(tidepool_free(other_, stranger), TIDEPOOL_INVALID_ARGUMENT);
    EXPECT_TRUE(says("is not of this heap"));
    EXPECT_EQ(tidepool_realloc(other_, stranger, 10), nullptr);
    EXPECT_EQ(tidepool_error_status(), TIDEPOOL_INVALID_ARGUMENT);
    EXPECT_EQ(tidepool_usable_size(other_, stranger), 0u);
  }
  free(mallocs);
  EXPECT_STREQ(block, "unchanged");
  EXPECT_EQ(statsOf(other_).frees, 0u);
  EXPECT_EQ(tidepool_free(heap_, block), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_free(heap_, nullptr), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_usable_size(heap_, nullptr), 0u);
}

TEST_F(HeapArguments, HandlesThatAreNone) {
  int something = 0;
  auto* const wild = reinterpret_cast<tidepool_heap*>(&something);
  EXPECT_EQ(tidepool_alloc(nullptr, 1), nullptr);
  EXPECT_EQ(tidepool_error_status(), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_free(wild, nullptr), TIDEPOOL_CLOSED);
  EXPECT_EQ(tidepool_heap_destroy(nullptr), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_heap_create(reinterpret_cast<tidepool_context*>(wild), nullptr, nullptr),
            TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_heap_get_stats(heap_, nullptr), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_completion_wait(nullptr, 0), TIDEPOOL_INVALID_ARGUMENT);
  tidepool_completion_free(nullptr);
}

TEST_F(HeapArguments, RangesOutsideTidepoolsMemory) {
  char local[64];
  const auto everything = static_cast<size_t>(-1);
  for (const size_t size : {sizeof local, everything}) {
    EXPECT_EQ(tidepool_advise(test_.context, local, size, TIDEPOOL_HINT_COLD),
              TIDEPOOL_INVALID_ARGUMENT);
    EXPECT_EQ(tidepool_prefetch(test_.context, local, size, nullptr), TIDEPOOL_INVALID_ARGUMENT);
    EXPECT_EQ(tidepool_evict(test_.context, local, size, nullptr), TIDEPOOL_INVALID_ARGUMENT);
  }
  EXPECT_EQ(tidepool_evict(test_.context, nullptr, 1, nullptr), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_evict(test_.context, nullptr, 0, nullptr), TIDEPOOL_OK);
  void* const block = tidepool_alloc(heap_, 100);
  EXPECT_EQ(tidepool_advise(test_.context, block, 100, static_cast<tidepool_hint>(9)),
            TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tidepool_advise(test_.context, block, everything, TIDEPOOL_HINT_COLD),
            TIDEPOOL_INVALID_ARGUMENT);
  void* const pinned = tidepool_alloc(other_, 100);
  EXPECT_EQ(tidepool_advise(test_.context, pinned, 100, TIDEPOOL_HINT_COLD), TIDEPOOL_OK);
}

TEST(Handles, TellClosedOnesForAsLongAsTheyCan) {
  static constinit HandleSlots<int, 8> slots;
  int objects[9] = {};
  HandleSlot<int>* handles[8];
  for (int i = 0; i < 8; ++i) handles[i] = slots.open(&objects[i]);
  EXPECT_EQ(slots.open(&objects[8]), nullptr);
  EXPECT_EQ(slots.close(handles[3]), &objects[3]);
  EXPECT_EQ(slots.close(handles[3]), nullptr);
  EXPECT_EQ(slots.find(handles[3]), nullptr);
  EXPECT_TRUE(slots.isOurs(handles[3]));
  EXPECT_FALSE(slots.isOurs(reinterpret_cast<char*>(handles[3]) + 1));
  EXPECT_FALSE(slots.isOurs(&objects));
  EXPECT_EQ(slots.open(&objects[8]), handles[3]);
  for (HandleSlot<int>* handle : handles) EXPECT_NE(slots.find(handle), nullptr);
}

}  // namespace
}  // namespace tidepool
