// SPDX-License-Identifier: Apache-2.0
// Tables of the C API in a fabric: the context asks the agent, outside `tidepool run`, and what is
// drained without room elsewhere goes to local memory that the context's budget has room for.
#include <cstring>

#include "tests/allocator/tables_fixture.h"
#include "tests/table/fake_agent.h"

namespace tidepool {
namespace {

class FabricOfAContext : public testing::TestWithParam<FakeAgent::Gives> {
 protected:
  void open(const char* dram) {
    const std::string conf = std::string("budget_scope:managed,space:64G,dram:") + dram +
                             ",far:fabric,agent:" + agent_.socket();
    context_ = TestContext::openWith(conf.c_str());
    tidepool_table_params params = tableParams("items");
    params.tier = "fabric";
    params.dram_bytes = 256 * kKiB;
    table_ = makeTable(context_, params);
  }
  std::vector<float> rows() {
    std::vector<int64_t> ids(kRows), offsets(kRows + 1);
    for (uint64_t i = 0; i < kRows; ++i) ids[i] = offsets[i] = static_cast<int64_t>(i);
    offsets[kRows] = kRows;
    std::vector<float> out(kRows * kDim, -9);
    EXPECT_EQ(lookUp(table_, ids, offsets, out), TIDEPOOL_OK) << tidepool_error_text();
    return out;
  }
  void TearDown() override {
    EXPECT_EQ(tidepool_table_close(table_), TIDEPOOL_OK) << tidepool_error_text();
    EXPECT_EQ(tidepool_close(context_), TIDEPOOL_OK) << tidepool_error_text();
  }

  FakeAgent agent_{GetParam(), Bytes(4 * kMiB)};
  tidepool_context* context_ = nullptr;
  tidepool_table* table_ = nullptr;
};

TEST_P(FabricOfAContext, IsAskedForWhenATableNeedsIt) {
  open("64M");
  const std::vector<float> before = rows();
  const std::vector<int64_t> ids{1, 5}, offsets{0, 2};
  const std::vector<float> gradients(kDim, 1.0f);
  ASSERT_OK(update(table_, ids, offsets, gradients));
  const std::vector<float> after = rows();
  for (uint64_t i = 0; i < kRows * kDim; ++i) {
    const bool stepped = i / kDim == 1 || i / kDim == 5;
    ASSERT_EQ(after[i], stepped ? before[i] - 0.5f : before[i]) << i;
  }
}

TEST_P(FabricOfAContext, GoesToItsLocalMemoryWhenThereIsNoOther) {
  open("64M");
  const std::vector<float> before = rows();
  agent_.giveNoMore();
  agent_.drainOldest();
  agent_.awaitLeft();
  EXPECT_EQ(rows(), before);
}

INSTANTIATE_TEST_SUITE_P(Classes, FabricOfAContext,
                         testing::Values(FakeAgent::Gives::kFiles, FakeAgent::Gives::kServers));

}  // namespace
}  // namespace tidepool
