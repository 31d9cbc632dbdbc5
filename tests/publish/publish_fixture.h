// SPDX-License-Identifier: Apache-2.0
// For tests of published tables: readers compared with the tables themselves.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "allocator/publish/published.h"
#include "allocator/publish/publisher.h"
#include "tests/scratch_folder.h"
#include "tests/table/table_fixture.h"

namespace tidepool {

template <typename T>
T valueOrDie(Result<T> result) {
  if (!result) fprintf(stderr, "%s\n", result.error().text());
  TP_CHECK(result.has_value());
  return std::move(*result);
}

inline std::unique_ptr<Publisher> publisherOf(std::vector<EmbeddingTable*> tables,
                                              const std::string& path, uint32_t mode = 0600) {
  return valueOrDie(Publisher::open(tables, path, mode));
}

/// One bag for each id.
inline std::vector<int64_t> singles(size_t ids) {
  std::vector<int64_t> offsets(ids + 1);
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i);
  return offsets;
}

/// Ids without a row as they would begin.
inline std::vector<float> lookedUp(EmbeddingTable& table, const std::vector<int64_t>& ids,
                                   Workers& workers) {
  const std::vector<int64_t> offsets = singles(ids.size());
  std::vector<float> out(ids.size() * table.options().format.dim);
  Batch batch{ids, offsets};
  batch.absent = Absent::kInitial;
  const EmbeddingTable::BagCall call{&table, batch, out.data(), table.options().format.dim};
  const Status status = EmbeddingTable::bags({&call, 1}, workers);
  EXPECT_TRUE(status) << status.error().text();
  return out;
}

inline std::vector<float> lookedUp(const Published& published, size_t table,
                                   const std::vector<int64_t>& ids, uint64_t generation) {
  const uint32_t dim = published.tables()[table].format().dim;
  const std::vector<int64_t> offsets = singles(ids.size());
  std::vector<float> out(ids.size() * dim, -7);
  const Published::BagCall call{table, {ids, offsets}, out.data(), dim};
  const auto seen = published.bags({&call, 1});
  EXPECT_TRUE(seen) << seen.error().text();
  EXPECT_EQ(seen.value_or(0), generation);
  return out;
}

/// The same bits.
inline void expectSameRows(const std::vector<float>& got, const std::vector<float>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  if (memcmp(got.data(), wanted.data(), got.size() * sizeof(float)) == 0) return;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], wanted[i]) << "float " << i;
}

}  // namespace tidepool
