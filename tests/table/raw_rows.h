// SPDX-License-Identifier: Apache-2.0
// Every row of a table as it lies in memory, optimizer's state and all, wherever it is: by way of a
// snapshot, as a checkpoint takes it.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "allocator/table/table_snapshot.h"

namespace tidepool {

/// By id; padded to the stride, as the model's rows are.
inline std::map<int64_t, std::vector<std::byte>> rawRowsOf(EmbeddingTable* table) {
  std::map<int64_t, std::vector<std::byte>> rows;
  RowBlockPool pool(TableSnapshot::kBlocks, Bytes(256 * kKiB)), copies(8, Bytes(256 * kKiB));
  RowBlockQueue queue;
  auto snapshots = TableSnapshot::begin({&table, 1}, SavedRows::kAll, 0, copies, queue);
  EXPECT_TRUE(snapshots) << snapshots.error().text();
  TableSnapshot& snapshot = *snapshots->front();
  const RowFormat& format = table->options().format;
  for (bool more = true; more;) {
    RowBlock* blocks[TableSnapshot::kBlocks];
    for (RowBlock*& block : blocks) block = pool.take();
    auto next = snapshot.next(blocks);
    EXPECT_TRUE(next) << next.error().text();
    more = next && *next;
    for (RowBlock* block : blocks) {
      for (size_t i = 0; i < block->rows.size(); ++i) {
        const RowNumber row = block->rows[i];
        std::vector<std::byte>& bytes =
            rows[static_cast<int64_t>(block->ids.empty() ? row : block->ids[i])];
        EXPECT_TRUE(bytes.empty()) << "row " << row << " twice";
        bytes.resize(format.stride());
        memcpy(bytes.data(), block->bytes + i * format.rowBytes(), format.rowBytes());
      }
      pool.giveBack(block);
    }
  }
  snapshot.finishCopies();
  return rows;
}

}  // namespace tidepool
