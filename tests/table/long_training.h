// SPDX-License-Identifier: Apache-2.0
// A training run of several tables that can be repeated exactly: its steps, generated once, and
// what the plain model makes of them. Training with the same steps must give the same bits.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "tests/table/table_fixture.h"
#include "tests/table/table_model.h"

namespace tidepool {

/// One table's part of a step.
struct StepPart {
  size_t table;
  RandomBatch batch;
  Pooling pooling;
  bool weighted;
  Batch view() const { return batch.view(pooling, weighted); }
};
using TrainingStep = std::vector<StepPart>;

/// Three tables: dense and hashed ids, and numbers of elements of every remainder of a vector.
inline constexpr RowNumber kTrainedRows = 6500;
inline constexpr uint32_t kTrainedDims[] = {24, 17, 8};
inline constexpr IdKind kTrainedIds[] = {IdKind::kDense, IdKind::kHashed, IdKind::kDense};
inline constexpr size_t kTrainedTables = std::size(kTrainedDims);

inline TableOptions trainedTable(size_t table, ElementType type, Optimizer optimizer) {
  TableOptions options;
  options.name = "trained" + std::to_string(table);
  options.rows = kTrainedRows;
  options.format = {type, optimizer, kTrainedDims[table]};
  options.ids = kTrainedIds[table];
  options.initializer = {table == 2 ? Initializer::Kind::kNormal : Initializer::Kind::kUniform,
                         table == 2 ? 0.0f : -0.1f, 0.1f, 42 + table};
  options.step.learning_rate = 0.05f;
  options.step.momentum = 0.9f;
  options.step.weight_decay = table == 0 ? 0.001f : 0.0f;
  return options;
}

/// The batch of one table. Ids of hashed ones have all 64 bits, negative ones among them.
inline StepPart makePart(std::mt19937_64& random, size_t table, size_t number, size_t bags) {
  StepPart part{table, RandomBatch(random, kTrainedRows, bags, 24, kTrainedDims[table]),
                (number + table) % 3 == 0 ? Pooling::kMean : Pooling::kSum,
                (number + table) % 2 == 1};
  if (kTrainedIds[table] == IdKind::kHashed) {
    for (int64_t& id : part.batch.ids) {
      id = static_cast<int64_t>(static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull);
    }
  }
  return part;
}

/// Every fifth step has two parts for the same table; every fiftieth is so large that workers share
/// one table's rows.
inline std::vector<TrainingStep> makeSteps(size_t count) {
  std::mt19937_64 random(20);
  std::vector<TrainingStep> steps(count);
  for (size_t number = 0; number < count; ++number) {
    const size_t bags = number % 50 == 3 ? 600 : 16;
    for (size_t table = 0; table < kTrainedTables; ++table) {
      steps[number].push_back(makePart(random, table, number, bags));
    }
    if (number % 5 == 4) steps[number].push_back(makePart(random, number % 2, number, bags));
  }
  return steps;
}

using Outputs = std::vector<std::vector<float>>;  // of every part of a step
using RawRows = std::map<int64_t, std::vector<std::byte>>;

/// What must come out: the pooled rows of every step, and in the end every row of every table with
/// its optimizer's state.
struct Reference {
  std::vector<Outputs> outputs;
  std::vector<RawRows> rows;
};

inline Reference referenceOf(const std::vector<TrainingStep>& steps, ElementType type,
                             Optimizer optimizer) {
  std::vector<TableModel> models;
  for (size_t table = 0; table < kTrainedTables; ++table) {
    models.emplace_back(trainedTable(table, type, optimizer));
  }
  Reference reference;
  for (const TrainingStep& step : steps) {
    Outputs outputs;
    for (const StepPart& part : step) {
      outputs.emplace_back(part.view().bags() * kTrainedDims[part.table]);
      models[part.table].bag(part.view(), outputs.back().data());
    }
    for (const StepPart& part : step) {
      models[part.table].update(part.view(), part.batch.gradients.data());
    }
    reference.outputs.push_back(std::move(outputs));
  }
  for (size_t table = 0; table < kTrainedTables; ++table) {
    if (kTrainedIds[table] == IdKind::kDense) {  // rows that nobody used have values, too
      for (RowNumber id = 0; id < kTrainedRows; ++id) models[table].read(static_cast<int64_t>(id));
    }
    reference.rows.push_back(models[table].all());
  }
  return reference;
}

}  // namespace tidepool
