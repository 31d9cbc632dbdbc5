// SPDX-License-Identifier: Apache-2.0
// Long training runs of several tables at once, bit for bit the model's, for every type and
// optimizer: in local DRAM, in a direct tier, on a memory server, on a NUMA node and in regions of
// a fabric, which are drained meanwhile, with 1, 10 and 100 % of the rows in DRAM, with one thread
// and with two, with random depths of reading ahead. The model runs once for all of them.
// TIDEPOOL_TRAINING_STEPS sets the steps of each run; `make soak` takes 1000.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <deque>

#include "tests/table/long_training.h"
#include "tests/table/raw_rows.h"

namespace tidepool {
namespace {

// The short form takes every third kind, which has all types and all optimizers; races and bad
// pointers depend on neither.
#ifdef TIDEPOOL_SANITIZED
constexpr size_t kShortSteps = 12;
constexpr unsigned kShortEvery = 7;
#else
constexpr size_t kShortSteps = 25;
constexpr unsigned kShortEvery = 3;
#endif
constexpr size_t kMostAhead = 6;

const char* wantedSteps() { return getenv("TIDEPOOL_TRAINING_STEPS"); }

const std::vector<TrainingStep>& steps() {
  static const std::vector<TrainingStep> made =
      makeSteps(wantedSteps() == nullptr ? kShortSteps : strtoul(wantedSteps(), nullptr, 10));
  return made;
}

struct Variant {
  Place place;
  unsigned percent;  // of the rows, in DRAM
  size_t threads;
  std::string name() const {
    return std::string(placeName(place)) + ", " + std::to_string(percent) + " %, " +
           std::to_string(threads) + " threads";
  }
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const size_t threads : {1u, 2u}) {
    all.push_back({Place::kLocal, 100, threads});
    for (const Place place : {Place::kDirect, Place::kRemote}) {
      for (const unsigned percent : {1u, 10u, 100u}) all.push_back({place, percent, threads});
    }
    for (const Place place : {Place::kNuma, Place::kFabric, Place::kFabricRows}) {
      all.push_back({place, 10, threads});
    }
  }
  return all;
}

/// Tables that are trained, and the batches announced for them.
class TrainingRun {
 public:
  TrainingRun(Places& places, const Variant& variant, ElementType type, Optimizer optimizer)
      : places_(places), variant_(variant), workers_(variant.threads, 0) {
    for (size_t table = 0; table < kTrainedTables; ++table) {
      TableOptions options = trainedTable(table, type, optimizer);
      const uint64_t slots = options.rows * variant.percent / 100;
      if (variant.place != Place::kLocal) {
        options.dram = DramPlan::forSlots(options, tierKindAt(variant.place), slots);
      }
      tables_.push_back(places.table(options, workers_));
    }
  }

  void train(const Reference& reference) {
    for (size_t number = 0; number < steps().size(); ++number) {
      if (inFabric() && number % 4 == 1) places_.agent().drainOldest();
      announceUpTo(number + 1 + ahead_random_() % (kMostAhead + 1));
      lookUp(number, reference.outputs[number]);
      update(number);
      if (testing::Test::HasFailure()) return;
      finish(number);
    }
    for (size_t table = 0; table < kTrainedTables; ++table) {
      ASSERT_EQ(rawRowsOf(tables_[table].get()), reference.rows[table]) << "table " << table;
    }
    checkCounts();
    if (!inFabric()) return;
    places_.agent().awaitLeft();
    for (size_t table = 0; table < kTrainedTables; ++table) {
      ASSERT_EQ(rawRowsOf(tables_[table].get()), reference.rows[table]) << "table " << table;
    }
  }

 private:
  bool inFabric() const {
    return variant_.place == Place::kFabric || variant_.place == Place::kFabricRows;
  }
  /// Announces steps before `end`. Not all are: one in eight comes as a surprise.
  void announceUpTo(size_t end) {
    for (; announced_ < std::min(end, steps().size()); ++announced_) {
      const TrainingStep& step = steps()[announced_];
      numbers_.emplace_back(step.size());
      if (ahead_random_() % 8 == 0) continue;
      std::vector<EmbeddingTable::PrefetchCall> calls;
      for (size_t i = 0; i < step.size(); ++i) {
        calls.push_back({tables_[step[i].table].get(), step[i].batch.ids, &numbers_.back()[i]});
      }
      // Two parts of one table are announced in an order that does not depend on the workers.
      const size_t once = std::min(calls.size(), kTrainedTables);
      const std::span all(calls);
      ASSERT_TRUE(EmbeddingTable::prefetches(all.first(once), workers_));
      if (once == calls.size()) continue;
      ASSERT_TRUE(EmbeddingTable::prefetches(all.subspan(once), workers_));
    }
  }

  void finish(size_t number) {
    for (size_t i = 0; i < steps()[number].size(); ++i) {
      if (numbers_.front()[i] != 0)
        tables_[steps()[number][i].table]->finished(numbers_.front()[i]);
    }
    numbers_.pop_front();
  }

  /// All parts in one call, or a call for each: workers share tables, or the rows of one.
  template <typename Call, typename Act>
  void inCalls(size_t number, const std::vector<Call>& calls, Act act) {
    const size_t each = number % 3 == 0 ? 1 : calls.size();
    for (size_t first = 0; first < calls.size(); first += each) {
      const Status status = act(std::span(calls).subspan(first, each));
      ASSERT_TRUE(status) << status.error().text();
    }
  }

  void lookUp(size_t number, const Outputs& wanted) {
    const TrainingStep& step = steps()[number];
    Outputs got;
    std::vector<EmbeddingTable::BagCall> calls;
    for (size_t i = 0; i < step.size(); ++i) {
      got.emplace_back(wanted[i].size(), -1.0f);
      calls.push_back({tables_[step[i].table].get(), step[i].view(), got[i].data(),
                       kTrainedDims[step[i].table]});
    }
    inCalls(number, calls, [&](auto some) { return EmbeddingTable::bags(some, workers_); });
    for (size_t i = 0; i < step.size(); ++i) {
      ASSERT_EQ(memcmp(got[i].data(), wanted[i].data(), got[i].size() * sizeof(float)), 0)
          << "step " << number << ", part " << i;
    }
  }

  void update(size_t number) {
    std::vector<EmbeddingTable::UpdateCall> calls;
    for (const StepPart& part : steps()[number]) {
      calls.push_back({tables_[part.table].get(), part.view(), part.batch.gradients.data(),
                       kTrainedDims[part.table]});
    }
    inCalls(number, calls, [&](auto some) { return EmbeddingTable::updates(some, workers_); });
  }

  /// That the run did what it is for.
  void checkCounts() {
    for (const auto& table : tables_) {
      const TableCounts counts = table->counts();
      // At 100 % rows of hashed ids come into being in a slot, and stay there.
      if (variant_.place == Place::kLocal || variant_.percent == 100) continue;
      EXPECT_EQ(counts.prefetched > 0, tierKindAt(variant_.place) == TierKind::kFetch);
      EXPECT_GT(counts.evictions, 0u);
      EXPECT_GT(counts.written_back, 0u);
      EXPECT_GT(counts.in_place + counts.fetched + counts.prefetched, 0u);
    }
  }

  Places& places_;
  const Variant variant_;
  Workers workers_;
  std::vector<std::unique_ptr<EmbeddingTable>> tables_;
  std::mt19937_64 ahead_random_{99};
  size_t announced_ = 0;
  std::deque<std::vector<BatchNumber>> numbers_;  // of steps not yet finished; 0: not announced
};

class LongTraining : public testing::TestWithParam<std::pair<ElementType, Optimizer>> {};

TEST_P(LongTraining, IsTheModelsBitForBitInEveryTierAndBudget) {
  const auto [type, optimizer] = GetParam();
  const Reference reference = referenceOf(steps(), type, optimizer);
  std::map<Place, std::unique_ptr<Places>> places;
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name());
    auto& tier = places[variant.place];
    if (!tier) tier = std::make_unique<Places>(variant.place);
    TrainingRun(*tier, variant, type, optimizer).train(reference);
    if (HasFailure()) return;
  }
}

std::vector<std::pair<ElementType, Optimizer>> kinds() {
  std::vector<std::pair<ElementType, Optimizer>> all;
  const unsigned every = wantedSteps() == nullptr ? kShortEvery : 1;
  for (unsigned number = 0; number < kElementTypes * kOptimizers; number += every) {
    all.emplace_back(static_cast<ElementType>(number / kOptimizers),
                     static_cast<Optimizer>(number % kOptimizers));
  }
  return all;
}
std::string kindName(const testing::TestParamInfo<std::pair<ElementType, Optimizer>>& info) {
  static const char* const kTypes[] = {"fp32", "fp16", "bf16", "int8"};
  static const char* const kNames[] = {"sgd", "momentum", "adagrad", "rowwise", "adam"};
  return std::string(kTypes[static_cast<int>(info.param.first)]) + "_" +
         kNames[static_cast<int>(info.param.second)];
}
INSTANTIATE_TEST_SUITE_P(All, LongTraining, testing::ValuesIn(kinds()), kindName);

}  // namespace
}  // namespace tidepool
