// SPDX-License-Identifier: Apache-2.0
// Embedding tables in memory of a fabric, by way of an agent, all real: tables in several regions,
// drains while they are trained, loss by force, and the death of each of the others. What a table
// answers is compared with a table in local memory that took the same steps.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "allocator/table/table_space.h"
#include "tests/fabricmgr/agent/far_device_fixture.h"
#include "tests/table/table_fixture.h"

namespace tidepool::agent {
namespace {

constexpr uint32_t kDim = 32;

class FabricTables : public FarDevice {
 protected:
  static constexpr uint64_t kDeviceBytes = 160 * kMiB;
  static constexpr uint64_t kRows = 60'000;  // 14.6 MiB, with their state

  void SetUp() override {
    FarDevice::SetUp();
    addDevice(kDeviceBytes, folder(), agent_options_);
  }
  std::string folder() const { return GetParam() == "whole" ? "/var/tmp" : "/dev/shm"; }
  void TearDown() override {
    table_.reset();
    more_.clear();
    space_.reset();
    FarDevice::TearDown();
  }

  static TableOptions optionsOf(uint64_t rows = kRows) {
    TableOptions options;
    options.name = "items";
    options.rows = rows;
    options.format.dim = kDim;
    options.format.optimizer = Optimizer::kAdagrad;
    options.initializer.kind = Initializer::Kind::kUniform;
    options.initializer.first = -1;
    options.initializer.second = 1;
    return options;
  }
  void open(uint64_t most = 0, uint64_t budget = 2 * kMiB) {
    FarSpec far;
    far.kind = farKind("fabric");
    far.size = Bytes(most);
    auto space = TableSpace::create(std::span(&far, 1), 2, Nanoseconds(20'000'000'000),
                                    Bytes(budget), nullptr, socket_.c_str());
    ASSERT_TRUE(space) << space.error().text();
    space_ = std::move(*space);
  }
  Result<std::unique_ptr<EmbeddingTable>> tryTable(uint64_t rows = kRows) {
    return space_->createTable(optionsOf(rows), 1);
  }
  /// A table in the fabric and one like it in local memory.
  void makeTables(uint64_t rows = kRows) {
    auto table = tryTable(rows);
    ASSERT_TRUE(table) << table.error().text();
    table_ = std::move(*table);
    auto plain = space_->createTable(optionsOf(rows), 0);
    ASSERT_TRUE(plain) << plain.error().text();
    plain_ = std::move(*plain);
  }
  /// A step of both; false if the two differ, or the one in the fabric fails.
  bool step(bool announce) {
    const RandomBatch random(random_, table_->options().rows, 128, 16, kDim);
    const Batch batch = random.view(Pooling::kSum, false);
    std::vector<float> got(128 * kDim, -1), wanted(128 * kDim, -2);
    const EmbeddingTable::BagCall far{table_.get(), batch, got.data(), kDim};
    const EmbeddingTable::BagCall near{plain_.get(), batch, wanted.data(), kDim};
    BatchNumber number = 0;
    if (announce) {
      const auto announced = table_->prefetch(random.ids);
      if (!announced) return note(tl::unexpected(announced.error()));
      number = *announced;
    }
    const Status looked = EmbeddingTable::bags({&far, 1}, space_->workers());
    if (!looked) return note(looked);
    EXPECT_TRUE(EmbeddingTable::bags({&near, 1}, space_->workers()));
    if (got != wanted) return note(fail(ErrorCode::kCorrupt, "other numbers"));
    const EmbeddingTable::UpdateCall change{table_.get(), batch, random.gradients.data(), kDim};
    const EmbeddingTable::UpdateCall same{plain_.get(), batch, random.gradients.data(), kDim};
    const Status changed = EmbeddingTable::updates({&change, 1}, space_->workers());
    if (!changed) return note(changed);
    EXPECT_TRUE(EmbeddingTable::updates({&same, 1}, space_->workers()));
    if (announce) table_->finished(number);
    return true;
  }
  bool note(const Status& status) {
    failure_ = status.error().text();
    code_ = status.error().code();
    return false;
  }
  void train(int steps) {
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(step(i % 3 != 0)) << failure_;
  }
  /// All rows, bit for bit.
  void expectSame() {
    constexpr uint64_t kPiece = 4096;
    std::vector<int64_t> ids;
    std::vector<float> got(kPiece * kDim), wanted(kPiece * kDim);
    for (uint64_t row = 0; row < table_->options().rows; row += kPiece) {
      ids.clear();
      for (uint64_t i = row; i < std::min(row + kPiece, table_->options().rows); ++i) {
        ids.push_back(static_cast<int64_t>(i));
      }
      const Status read = table_->readRows(ids, got.data());
      ASSERT_TRUE(read) << read.error().text();
      ASSERT_TRUE(plain_->readRows(ids, wanted.data()));
      ASSERT_EQ(memcmp(got.data(), wanted.data(), ids.size() * kDim * sizeof(float)), 0) << row;
    }
  }
  std::vector<uint64_t> regions() {
    std::vector<uint64_t> ids;
    const Json list = get("/v1/regions");
    for (const Json& one : list["items"]) {
      if (one["state"] != "free") ids.push_back(one["id"].get<uint64_t>());
    }
    return ids;
  }
  void drain(uint64_t region) {
    post("/v1/regions/" + std::to_string(region) + "/drain", Json::object());
  }

  std::vector<std::string> agent_options_;
  std::unique_ptr<TableSpace> space_;
  std::unique_ptr<EmbeddingTable> table_, plain_;
  std::vector<std::unique_ptr<EmbeddingTable>> more_;
  std::mt19937_64 random_{7};
  std::string failure_;
  ErrorCode code_{};
};

TEST_P(FabricTables, RowsAreTheSameAsInLocalMemoryAndRegionsGoBack) {
  open();
  EXPECT_TRUE(regions().empty()) << "nothing is asked for before it is needed";
  makeTables();
  EXPECT_FALSE(regions().empty());
  train(20);
  expectSame();
  table_.reset();
  await([&] { return regions().empty(); });
  makeTables();
  train(5);
  expectSame();
}

TEST_P(FabricTables, OneTableMayLieInSeveralRegions) {
  for (int i = 0; i < 5; ++i) assignFar(4 * kMiB);
  open(20 * kMiB);
  makeTables();
  EXPECT_EQ(regions().size(), 5u);
  train(20);
  expectSame();
}

TEST_P(FabricTables, IsMovedOffWhatIsDrainedWhileItIsTrained) {
  const uint64_t standing = assignFar(16 * kMiB);
  open();
  makeTables();
  ASSERT_EQ(regions(), std::vector<uint64_t>{standing});
  std::atomic<bool> stop{false}, well{true};
  std::atomic<uint64_t> steps{0};
  std::thread trainer([&] {
    for (; !stop && well; ++steps) well = step(steps % 3 != 0);
  });
  drain(standing);
  await([&] { return stateOf(standing) == "free"; });
  const uint64_t before = steps;
  while (steps < before + 3 && well) std::this_thread::yield();
  stop = true;
  trainer.join();
  EXPECT_TRUE(well) << failure_;
  expectSame();
  EXPECT_FALSE(regions().empty());
}

TEST_P(FabricTables, DrainsOneAfterTheOther) {
  open();
  makeTables();
  for (int round = 0; round < 4; ++round) {
    train(3);
    const auto held = regions();
    ASSERT_FALSE(held.empty());
    drain(held.front());
    await([&] { return stateOf(held.front()) == "free"; });
    expectSame();
  }
}

TEST_P(FabricTables, WithoutRoomElsewhereRowsGoToLocalMemoryThatTablesGiveUp) {
  const uint64_t standing = assignFar(kDeviceBytes - 2 * kMiB);
  open(0, 24 * kMiB);
  makeTables();
  train(3);
  drain(standing);
  await([&] { return stateOf(standing) == "free"; });
  train(10);
  expectSame();
  EXPECT_LE(space_->shared().held(), Bytes(24 * kMiB));
}

TEST_P(FabricTables, WithoutAnyRoomTheDrainWaitsAndCanBeCalledOff) {
  const uint64_t standing = assignFar(kDeviceBytes - 2 * kMiB);
  open();
  makeTables();
  testing::internal::CaptureStderr();
  drain(standing);
  // The operator can see that it waits, and why.
  const auto operation = get("/v1/regions/" + std::to_string(standing))["operation"];
  const std::string path = "/v1/operations/" + operation.dump();
  while (get(path).value("text", "").find("waits: there is no room") == std::string::npos) train(1);
  post("/v1/regions/" + std::to_string(standing) + "/resume", Json::object());
  train(10);
  expectSame();
  EXPECT_EQ(stateOf(standing), "attached");
  testing::internal::GetCapturedStderr();
}

TEST_P(FabricTables, WhatIsTakenByForceIsLostAndEveryUseSaysSo) {
  const uint64_t standing = assignFar(16 * kMiB);
  open();
  makeTables();
  train(3);
  post("/v1/regions/" + std::to_string(standing) + "/release", {{"force", true}});
  // From the moment at which the process has heard of it; a pool file cannot refuse it before.
  const std::vector<int64_t> first{0};
  std::vector<float> row(kDim);
  while (table_->readRows(first, row.data())) std::this_thread::yield();
  EXPECT_FALSE(step(false));
  EXPECT_THAT(failure_, ::testing::HasSubstr("table items was given up"));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(step(i == 1)) << "it stays lost";
  const std::vector<int64_t> ids{0, 1};
  std::vector<float> out(2 * kDim);
  EXPECT_FALSE(table_->readRows(ids, out.data()));
  EXPECT_FALSE(table_->writeRows(ids, out.data()));
  EXPECT_EQ(table_->readRows(ids, out.data()).error().code(), code_);
  // A new one, in other memory.
  table_.reset();
  plain_.reset();
  random_.seed(7);
  makeTables();
  train(3);
  expectSame();
}

TEST_P(FabricTables, GoesOnWhileTheOthersAreKilled) {
  open();
  makeTables();
  train(3);
  const auto held = regions();
  killNow(agent_);
  train(3);
  killNow(manager_);
  train(3);
  startManager();
  startAgent();
  await([&] { return get("/v1/hosts/" + std::string(kHost)).value("state", "") == "active"; });
  drain(held.front());
  await([&] { return stateOf(held.front()) == "free"; });
  train(3);
  expectSame();
}

TEST_P(FabricTables, TakesNoMoreThanItIsAllowed) {
  open(8 * kMiB);
  const auto table = tryTable();
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code(), ErrorCode::kNoSpace);
  EXPECT_THAT(table.error().text(), ::testing::HasSubstr("fabric:8M"));
  EXPECT_TRUE(tryTable(20'000));
  await([&] { return regions().empty(); });
}

TEST_P(FabricTables, SaysWhyThereIsNoMore) {
  open();
  const auto table = tryTable(4'000'000);
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code(), ErrorCode::kNoSpace) << table.error().text();
  await([&] { return regions().empty(); });
}

INSTANTIATE_TEST_SUITE_P(Classes, FabricTables, ::testing::Values("cxl", "remote"),
                         [](const auto& one) { return one.param; });

/// Of a host whose lease is short.
class FabricTablesLease : public FabricTables {
 protected:
  void SetUp() override {
    agent_options_ = {"--lease", "3"};
    FabricTables::SetUp();
  }
  /// Beyond the end of the lease that runs.
  static Nanoseconds leaseEnd() { return BootClock().now() + Nanoseconds(3'000'000'000); }
};

TEST_P(FabricTablesLease, NobodyReadsOrWritesWhatTheNextTenantHas) {
  const uint64_t region = assignFar(kDeviceBytes);
  open();
  makeTables();
  train(3);
  std::thread trainer([&] {
    for (int i = 0; step(i % 3 == 0); ++i) {
    }
  });
  agent_->stop();
  await([&] { return stateOf(region) == "free"; });
  const std::string other_socket = scratch_ / "other.sock";
  const auto other_agent = agentOf("node2", other_socket, {"--lease", "86400"});
  await([&] { return get("/v1/hosts")["items"].size() == 2; });
  post("/v1/regions", {{"host", "node2"}, {"size_bytes", kDeviceBytes}, {"class", "cxl"}});
  const auto tenant = connectTo(other_socket);
  Given given = ask(*tenant, 0);
  ASSERT_EQ(given.size, Bytes(kDeviceBytes));
  memset(&given.at(0), 0xa5, given.size.value());
  agent_->signal(SIGCONT);
  trainer.join();
  EXPECT_EQ(code_, ErrorCode::kLost) << failure_;
  uint64_t spoiled = 0;
  for (uint64_t at = 0; at < given.size.value(); ++at) spoiled += given.at(at) != 0xa5;
  EXPECT_EQ(spoiled, 0u);
}

TEST_P(FabricTablesLease, GoOnWithTheirRowsWhenTheLeaseIsRenewed) {
  open();
  makeTables();
  train(3);
  const Nanoseconds end = leaseEnd();
  killNow(manager_);
  agent_->stop();
  while (BootClock().now() < end) std::this_thread::yield();
  std::thread trainer([&] { train(20); });
  agent_->signal(SIGCONT);
  startManager();
  trainer.join();
  expectSame();
}

INSTANTIATE_TEST_SUITE_P(Files, FabricTablesLease, ::testing::Values("cxl", "whole"),
                         [](const auto& one) { return one.param; });

TEST_F(AgentProcesses, TablesSayThatThereIsNoAgent) {
  FarSpec far;
  far.kind = farKind("fabric");
  auto space = TableSpace::create(std::span(&far, 1), 1, Nanoseconds(1'000'000'000), Bytes(kMiB),
                                  nullptr, socket_.c_str());
  ASSERT_TRUE(space);
  TableOptions options;
  options.rows = 100;
  options.format.dim = 16;
  const auto table = (*space)->createTable(options, 1);
  ASSERT_FALSE(table);
  EXPECT_THAT(table.error().text(), ::testing::HasSubstr("fabricmgr agent"));
}

}  // namespace
}  // namespace tidepool::agent
