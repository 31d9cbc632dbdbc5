// SPDX-License-Identifier: Apache-2.0
// Tables in a mirror of two memory servers, processes of their own, of which one is killed or
// stopped at a random point of the training or of a checkpoint: bit for bit the model's; and the
// other one later, once a third has a copy.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

#include "allocator/table/table_space.h"
#include "runtime/tier/mirror_state.h"
#include "tests/migrate/server_process.h"
#include "tests/table/long_training.h"
#include "tests/table/raw_rows.h"

namespace tidepool {
namespace {

constexpr size_t kSteps = 12;
constexpr Bytes kSize(32 * kMiB);  // of a server
constexpr ElementType kType = ElementType::kFloat32;
constexpr Optimizer kOptimizer = Optimizer::kAdagrad;

const std::vector<TrainingStep>& steps() {
  static const std::vector<TrainingStep> made = makeSteps(kSteps);
  return made;
}
const Reference& reference() {
  static const Reference made = referenceOf(steps(), kType, kOptimizer);
  return made;
}

class MirrorTable : public testing::Test {
 protected:
  ~MirrorTable() override { endSignalling(); }

  void open(size_t servers) {
    reference();
    FarSpec far;
    far.kind = farKind("mirror");
    std::string target;
    for (size_t i = 0; i < servers; ++i) {
      target += (i > 0 ? "+127.0.0.1:" : "127.0.0.1:") + std::to_string(servers_[i].port());
    }
    snprintf(far.target, sizeof far.target, "%s", target.c_str());
    far.size = Bytes(24 * kMiB);
    auto space = TableSpace::create({&far, 1}, 2, Nanoseconds(2'000'000'000));
    ASSERT_TRUE(space) << space.error().text();
    space_ = std::move(*space);
    for (size_t table = 0; table < kTrainedTables; ++table) {
      TableOptions options = trainedTable(table, kType, kOptimizer);
      options.dram = DramPlan::forSlots(options, TierKind::kFetch, options.rows / 20);
      auto made = space_->createTable(options, 1);
      ASSERT_TRUE(made) << made.error().text();
      tables_.push_back(std::move(*made));
    }
  }
  MirrorState& mirror() { return *(*space_->farTier(1))->fetch()->mirror(); }

  /// `server` gets the signal once `count_` is `point`, in the midst of what is counted.
  void signalAt(uint64_t point, size_t server, int signal) {
    signalling_ = std::thread([this, point, server, signal] {
      while (count_ < point) std::this_thread::yield();
      servers_[server].signal(signal);
    });
  }
  void train(size_t first, size_t end) {
    for (size_t number = first; number < end && !HasFailure(); ++number) {
      ++count_;
      const TrainingStep& step = steps()[number];
      for (size_t i = 0; i < step.size(); ++i) {
        const StepPart& part = step[i];
        EmbeddingTable* const table = tables_[part.table].get();
        const auto announced = table->prefetch(part.batch.ids);
        ASSERT_TRUE(announced) << announced.error().text();
        const Outputs::value_type& wanted = reference().outputs[number][i];
        std::vector<float> got(wanted.size(), -1);
        const EmbeddingTable::BagCall call{table, part.view(), got.data(),
                                           kTrainedDims[part.table]};
        const Status looked_up = EmbeddingTable::bags({&call, 1}, space_->workers());
        ASSERT_TRUE(looked_up) << looked_up.error().text();
        ASSERT_EQ(memcmp(got.data(), wanted.data(), got.size() * sizeof(float)), 0)
            << "step " << number << ", part " << i;
        table->finished(*announced);
      }
      for (const StepPart& part : step) {
        const EmbeddingTable::UpdateCall call{tables_[part.table].get(), part.view(),
                                              part.batch.gradients.data(),
                                              kTrainedDims[part.table]};
        const Status updated = EmbeddingTable::updates({&call, 1}, space_->workers());
        ASSERT_TRUE(updated) << updated.error().text();
      }
    }
  }
  void expectAllRows() {
    for (size_t table = 0; table < kTrainedTables && !HasFailure(); ++table) {
      ++count_;
      ASSERT_EQ(rawRowsOf(tables_[table].get()), reference().rows[table]) << "table " << table;
    }
  }
  void endSignalling() {
    count_ = ~uint64_t{0};
    if (signalling_.joinable()) signalling_.join();
  }

  ServerProcess servers_[3] = {ServerProcess(kSize), ServerProcess(kSize), ServerProcess(kSize)};
  std::unique_ptr<TableSpace> space_;
  std::vector<std::unique_ptr<EmbeddingTable>> tables_;
  std::atomic<uint64_t> count_{0};
  std::thread signalling_;
};

class WithOneLost : public MirrorTable, public testing::WithParamInterface<int> {};

TEST_P(WithOneLost, IsTheModelsBitForBit) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  open(2);
  const uint64_t point = 1 + random() % (kSteps + kTrainedTables);
  const size_t server = random() % 2;
  const int signal = GetParam() % 2 == 0 ? SIGKILL : SIGSTOP;
  SCOPED_TRACE("server " + std::to_string(server) + ", at " + std::to_string(point));
  signalAt(point, server, signal);
  train(0, kSteps);
  expectAllRows();
  endSignalling();
  expectAllRows();
  EXPECT_EQ(mirror().look().lostSide(), server);
}
INSTANTIATE_TEST_SUITE_P(Points, WithOneLost, testing::Range(0, 6));

TEST_F(MirrorTable, OutlivesBothOfTheFirstServersOnceTheThirdHasACopy) {
  open(3);
  signalAt(kSteps / 3, 0, SIGKILL);
  train(0, kSteps / 2);
  endSignalling();
  train(kSteps / 2, kSteps);
  expectAllRows();
  while (!mirror().complete(mirror().look()) && !HasFailure()) expectAllRows();
  servers_[1].signal(SIGKILL);
  expectAllRows();
  EXPECT_EQ(mirror().look().lostSide(), 1u);
}

TEST_F(MirrorTable, SaysWhichServersAreLostWhenBothAre) {
  open(2);
  train(0, 2);
  for (size_t i = 0; i < 2; ++i) servers_[i].signal(SIGKILL);
  std::vector<int64_t> ids(kTrainedRows);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  std::vector<float> rows(kTrainedRows * kTrainedDims[0]);
  // Once to find it out; rows that were never written are asked for of nobody.
  Status status = tables_[0]->writeRows(ids, rows.data());
  if (status) status = tables_[0]->readRows(ids, rows.data());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kUnreachable);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NE(strstr(status.error().text(), std::to_string(servers_[i].port()).c_str()), nullptr)
        << status.error().text();
  }
}

}  // namespace
}  // namespace tidepool
