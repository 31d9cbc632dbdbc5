// SPDX-License-Identifier: Apache-2.0
// Tables in every kind of tier, for tests: local DRAM, an emulated pool, a memory server in this
// process; and batches with a skew like that of real ones.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "allocator/table/table.h"
#include "fabricmgr/memserver/server.h"
#include "runtime/tier/direct_file_tier.h"
#include "runtime/tier/remote_tier.h"

namespace tidepool {

enum class Place { kLocal, kDirect, kRemote };
inline const char* placeName(Place place) {
  return place == Place::kLocal ? "local" : place == Place::kDirect ? "direct" : "remote";
}

/// A tier, and what keeps it up.
class Places {
 public:
  explicit Places(Place place, Bytes size = Bytes(64 * kMiB)) : place_(place) {
    if (place == Place::kDirect) {
      auto tier = DirectFileTier::createEmulated(size);
      EXPECT_TRUE(tier) << tier.error().text();
      direct_ = std::move(*tier);
    }
    if (place == Place::kRemote) openServer(size);
  }

  Result<std::unique_ptr<RowHome>> home(const TableOptions& options) {
    switch (place_) {
      case Place::kLocal:
        return RowHome::inLocalMemory(options.format, options.rows);
      case Place::kDirect:
      case Place::kRemote:
        break;
    }
    if (!store_) store_ = direct_ ? rowStoreIn(*direct_) : rowStoreIn(*remote_);
    return RowHome::inStore(*store_, options.format, options.rows);
  }

  std::unique_ptr<EmbeddingTable> table(const TableOptions& options, Workers& workers) {
    auto rows = home(options);
    EXPECT_TRUE(rows) << rows.error().text();
    auto table = EmbeddingTable::create(options, std::move(*rows), workers);
    EXPECT_TRUE(table) << table.error().text();
    return std::move(*table);
  }

  void stopServer() { server_.reset(); }
  Tier& tier() { return direct_ ? static_cast<Tier&>(*direct_) : static_cast<Tier&>(*remote_); }

 private:
  void openServer(Bytes size) {
    memserver::ServerOptions options;
    options.size = size;
    auto server = memserver::Server::start(options);
    ASSERT_TRUE(server) << server.error().text();
    server_ = std::move(*server);
    FarSpec far;
    far.kind = FarKind::kRemote;
    snprintf(far.target, sizeof far.target, "127.0.0.1:%u", server_->port());
    auto tier = RemoteTier::open(far, Nanoseconds(20'000'000'000));
    ASSERT_TRUE(tier) << tier.error().text();
    remote_ = std::move(*tier);
  }

  const Place place_;
  std::unique_ptr<memserver::Server> server_;
  std::unique_ptr<DirectFileTier> direct_;
  std::unique_ptr<RemoteTier> remote_;
  std::unique_ptr<RowStore> store_;
};

/// Batches that use a few rows often and most rows seldom.
struct RandomBatch {
  std::vector<int64_t> ids, offsets;
  std::vector<float> weights, gradients;

  RandomBatch(std::mt19937_64& random, uint64_t rows, size_t bags, size_t most, uint32_t dim) {
    offsets.push_back(0);
    for (size_t bag = 0; bag < bags; ++bag) {
      for (size_t i = random() % (most + 1); i > 0; --i) {
        const double unit = static_cast<double>(random() % 1'000'003) / 1'000'003;
        ids.push_back(static_cast<int64_t>(static_cast<double>(rows) * unit * unit * unit * unit));
        weights.push_back(static_cast<float>(random() % 64) / 16);
      }
      offsets.push_back(static_cast<int64_t>(ids.size()));
    }
    std::uniform_real_distribution<float> values(-1, 1);
    for (size_t i = 0; i < bags * dim; ++i) gradients.push_back(values(random));
  }

  Batch view(Pooling pooling, bool weighted) const {
    return {ids, offsets, weighted ? weights.data() : nullptr, pooling};
  }
};

}  // namespace tidepool
