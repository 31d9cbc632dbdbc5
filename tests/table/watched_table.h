// SPDX-License-Identifier: Apache-2.0
// A table that is compared with its model after each thing it does, for tests of its local memory.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/table/table_fixture.h"
#include "tests/table/table_model.h"

namespace tidepool {

inline TableOptions optionsFor(const char* name, RowNumber rows, IdKind ids = IdKind::kDense,
                               Optimizer optimizer = Optimizer::kAdagrad) {
  TableOptions options;
  options.name = name;
  options.rows = rows;
  options.format = {ElementType::kFloat32, optimizer, 16};
  options.ids = ids;
  options.initializer = {Initializer::Kind::kUniform, -0.1f, 0.1f, 9};
  options.step.learning_rate = 0.05f;
  return options;
}

inline TierKind kindOf(Place place) {
  return place == Place::kRemote ? TierKind::kFetch : TierKind::kDirect;
}

/// A table beside its model: both do the same, and must come out the same.
struct Watched {
  TableOptions options;
  std::unique_ptr<EmbeddingTable> table;
  TableModel model;
  std::deque<std::pair<RandomBatch, BatchNumber>> ahead;

  Watched(const TableOptions& wanted, std::unique_ptr<EmbeddingTable> made)
      : options(wanted), table(std::move(made)), model(wanted) {}

  RandomBatch next(std::mt19937_64& random) const {
    RandomBatch batch(random, options.rows, 1 + random() % 30, 20, options.format.dim);
    if (options.ids == IdKind::kHashed) {
      for (int64_t& id : batch.ids) id *= 0x10001;
    }
    return batch;
  }
  void bags(Workers& workers, const RandomBatch& batch) {
    const Batch view = batch.view(Pooling::kSum, true);
    std::vector<float> got(view.bags() * options.format.dim, -1), wanted(got.size(), -2);
    const EmbeddingTable::BagCall call{table.get(), view, got.data(), options.format.dim};
    const Status status = EmbeddingTable::bags({&call, 1}, workers);
    ASSERT_TRUE(status) << status.error().text();
    model.bag(view, wanted.data());
    ASSERT_EQ(memcmp(got.data(), wanted.data(), got.size() * sizeof(float)), 0);
  }
  void update(Workers& workers, const RandomBatch& batch) {
    const Batch view = batch.view(Pooling::kMean, false);
    const EmbeddingTable::UpdateCall call{table.get(), view, batch.gradients.data(),
                                          options.format.dim};
    const Status status = EmbeddingTable::updates({&call, 1}, workers);
    ASSERT_TRUE(status) << status.error().text();
    model.update(view, batch.gradients.data());
  }
  void write(const RandomBatch& batch) {
    std::vector<float> values(batch.ids.size() * options.format.dim, 0.25f);
    ASSERT_TRUE(table->writeRows(batch.ids, values.data()));
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      model.write(batch.ids[i], values.data() + i * options.format.dim);
    }
  }
  void announce(std::mt19937_64& random) {
    RandomBatch batch = next(random);
    const auto number = table->prefetch(batch.ids);
    ASSERT_TRUE(number) << number.error().text();
    for (const int64_t id : batch.ids) model.read(id);  // hashed ids come into being
    ahead.emplace_back(std::move(batch), *number);
  }
  void useOldest(Workers& workers) {
    if (ahead.empty()) return;
    bags(workers, ahead.front().first);
    update(workers, ahead.front().first);
    table->finished(ahead.front().second);
    ahead.pop_front();
  }
  /// One thing or another.
  void act(Workers& workers, std::mt19937_64& random, uint64_t what) {
    switch (what % 6) {
      case 0:
      case 1:
        return bags(workers, next(random));
      case 2:
        return update(workers, next(random));
      case 3:
        return write(next(random));
      case 4:
        return ahead.size() < 3 ? announce(random) : useOldest(workers);
      default:
        return useOldest(workers);
    }
  }
  void expectAllRows() {
    for (const auto& [id, bytes] : model.all()) {
      std::vector<float> got(options.format.dim);
      ASSERT_TRUE(table->readRows({&id, 1}, got.data()));
      const std::vector<float> wanted = model.read(id);
      ASSERT_EQ(memcmp(got.data(), wanted.data(), got.size() * sizeof(float)), 0) << "row " << id;
    }
  }
};

}  // namespace tidepool
