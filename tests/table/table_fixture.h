// SPDX-License-Identifier: Apache-2.0
// Tables in every kind of tier, for tests: local DRAM, an emulated pool, a memory server in this
// process; and batches with a skew like that of real ones.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "allocator/fabric/fabric_pool.h"
#include "allocator/table/table.h"
#include "fabricmgr/memserver/server.h"
#include "runtime/tier/direct_file_tier.h"
#include "runtime/tier/numa_tier.h"
#include "runtime/tier/remote_tier.h"
#include "tests/table/fake_agent.h"

namespace tidepool {

/// kFabric: pool files by way of an agent, which are read in place. kFabricRows: memory servers.
enum class Place { kLocal, kDirect, kRemote, kNuma, kFabric, kFabricRows };
inline const char* placeName(Place place) {
  constexpr const char* kNames[] = {"local", "direct", "remote", "numa", "fabric", "fabric rows"};
  return kNames[static_cast<int>(place)];
}
/// Of the tables there.
inline TierKind tierKindAt(Place place) {
  const bool fetched = place == Place::kRemote || place == Place::kFabricRows;
  return place == Place::kLocal ? TierKind::kLocal
                                : (fetched ? TierKind::kFetch : TierKind::kDirect);
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
    if (place == Place::kNuma) openNode(size);
    if (place == Place::kRemote) openServer(size);
    if (place == Place::kFabric || place == Place::kFabricRows) openFabric();
  }

  Result<std::unique_ptr<BackingStore>> backingStore(const TableOptions& options) {
    switch (place_) {
      case Place::kLocal:
        return BackingStore::inLocalMemory(options.format, options.rows);
      case Place::kFabric:
      case Place::kFabricRows: {
        auto rows = fabric_->makeRows(Bytes(options.format.stride()), options.rows);
        if (!rows) return tl::unexpected(rows.error());
        return BackingStore::inFabric(std::move(*rows));
      }
      case Place::kDirect:
      case Place::kRemote:
      case Place::kNuma:
        break;
    }
    if (!store_) store_ = direct_ ? direct_->rowStore() : remote_->rowStore();
    return BackingStore::inStore(*store_, options.format, options.rows);
  }

  std::unique_ptr<EmbeddingTable> table(const TableOptions& options, Workers& workers) {
    auto rows = backingStore(options);
    EXPECT_TRUE(rows) << rows.error().text();
    auto table = EmbeddingTable::create(options, std::move(*rows), workers);
    EXPECT_TRUE(table) << table.error().text();
    return std::move(*table);
  }

  void stopServer() { server_.reset(); }
  /// Of a fabric.
  FakeAgent& agent() { return *agent_; }
  Tier& tier() { return direct_ ? static_cast<Tier&>(*direct_) : static_cast<Tier&>(*remote_); }

 private:
  /// This machine's node, said to be one of two: there is seldom another.
  void openNode(Bytes size) {
    os::NumaNodes nodes = os::readNumaNodes();
    nodes.nodes[1].number = 1;
    nodes.nodes[1].total = Bytes(kGiB);
    nodes.nodes[1].distance = 20;
    nodes.count = 2;
    nodes.nodes[0].free = nodes.nodes[0].total / 32 + size + Bytes(kGranuleSize);
    auto tier = NumaTier::open(0, nodes);
    ASSERT_TRUE(tier) << tier.error().text();
    direct_ = std::move(*tier);
  }
  /// Regions are small, so that each table is in several of them.
  void openFabric() {
    agent_ = std::make_unique<FakeAgent>(
        place_ == Place::kFabric ? FakeAgent::Gives::kFiles : FakeAgent::Gives::kServers,
        Bytes(4 * kMiB));
    auto pool =
        FabricPool::open(agent_->socket().c_str(), Bytes(), Nanoseconds(20'000'000'000), no_room_);
    ASSERT_TRUE(pool) << pool.error().text();
    fabric_ = std::move(*pool);
  }
  void openServer(Bytes size) {
    memserver::ServerOptions options;
    options.size = size;
    auto server = memserver::Server::start(options);
    ASSERT_TRUE(server) << server.error().text();
    server_ = std::move(*server);
    FarSpec far;
    far.kind = farKind("remote");
    snprintf(far.target, sizeof far.target, "127.0.0.1:%u", server_->port());
    auto tier = RemoteTier::open(far, Nanoseconds(20'000'000'000));
    ASSERT_TRUE(tier) << tier.error().text();
    remote_ = std::move(*tier);
  }

  const Place place_;
  std::unique_ptr<memserver::Server> server_;
  class NoRoom final : public LocalRoom {
   public:
    Status take(Bytes) override { return fail(ErrorCode::kNoSpace, "no local memory"); }
    void giveBack(Bytes) override {}
  };
  NoRoom no_room_;
  std::unique_ptr<FakeAgent> agent_;
  std::unique_ptr<FabricPool> fabric_;
  std::unique_ptr<DirectTier> direct_;
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
