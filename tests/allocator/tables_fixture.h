// SPDX-License-Identifier: Apache-2.0
// Small tables of the C API, and calls on one of them, for tests.
#pragma once

#include <string>
#include <vector>

#include "tests/allocator/fixture.h"

#define ASSERT_OK(call) ASSERT_EQ(call, TIDEPOOL_OK) << tidepool_error_text()

namespace tidepool {

inline constexpr uint64_t kRows = 4000;
inline constexpr uint32_t kDim = 8;

/// Of random first values, with a learning rate of 0.5. `name` is borrowed.
inline tidepool_table_params tableParams(const char* name) {
  static const tidepool_rates rates = [] {
    tidepool_rates half = TIDEPOOL_RATES_INIT;
    half.learning_rate = 0.5f;
    return half;
  }();
  tidepool_table_params params = TIDEPOOL_TABLE_PARAMS_INIT;
  params.name = name;
  params.rows = kRows;
  params.dim = kDim;
  params.initializer = TIDEPOOL_UNIFORM;
  params.init_first = -1;
  params.init_second = 1;
  params.rates = &rates;
  return params;
}

inline tidepool_table* makeTable(tidepool_context* context, const tidepool_table_params& params) {
  tidepool_table* table = nullptr;
  EXPECT_EQ(tidepool_table_create(context, &params, &table), TIDEPOOL_OK) << tidepool_error_text();
  return table;
}

inline tidepool_bags bagsOf(tidepool_table* table, const std::vector<int64_t>& ids,
                            const std::vector<int64_t>& offsets) {
  tidepool_bags bags = TIDEPOOL_BAGS_INIT;
  bags.table = table;
  bags.ids = ids.data();
  bags.ids_count = ids.size();
  bags.offsets = offsets.data();
  bags.bags = offsets.size() - 1;
  return bags;
}

inline tidepool_status lookUp(tidepool_table* table, const std::vector<int64_t>& ids,
                              const std::vector<int64_t>& offsets, std::vector<float>& out) {
  const tidepool_bags bags = bagsOf(table, ids, offsets);
  float* const place = out.data();
  const size_t floats = out.size();
  return tidepool_tables_lookup(&bags, 1, &place, &floats);
}

inline tidepool_status update(tidepool_table* table, const std::vector<int64_t>& ids,
                              const std::vector<int64_t>& offsets,
                              const std::vector<float>& gradients) {
  const tidepool_bags bags = bagsOf(table, ids, offsets);
  const float* const place = gradients.data();
  const size_t floats = gradients.size();
  return tidepool_tables_update(&bags, 1, &place, &floats);
}

inline tidepool_table_stats tableStats(tidepool_table* table) {
  tidepool_table_stats stats{};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(tidepool_table_get_stats(table, &stats), TIDEPOOL_OK) << tidepool_error_text();
  return stats;
}

}  // namespace tidepool
