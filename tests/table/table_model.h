// SPDX-License-Identifier: Apache-2.0
// What an embedding table must do, written plainly: all rows in a map in DRAM, one look-up after
// the other, by the scalar kernels. Tables are compared with it bit for bit.
#pragma once

#include <cstring>
#include <map>
#include <vector>

#include "allocator/table/table.h"

namespace tidepool {

class TableModel {
 public:
  explicit TableModel(const TableOptions& options) : options_(options), step_(options.step) {
    step_.step = 0;
  }

  void bag(const Batch& batch, float* out) {
    const uint32_t dim = options_.format.dim;
    for (size_t bag = 0; bag < batch.bags(); ++bag) {
      std::vector<const std::byte*> rows;
      const auto first = static_cast<size_t>(batch.offsets[bag]);
      for (size_t i = first; i < static_cast<size_t>(batch.offsets[bag + 1]); ++i) {
        rows.push_back(row(batch.ids[i]).data());
      }
      const uint32_t offsets[] = {0, static_cast<uint32_t>(rows.size())};
      BagBatch one;
      one.rows = rows.data();
      one.offsets = offsets;
      one.bags = 1;
      one.weights = batch.weights == nullptr ? nullptr : batch.weights + first;
      one.pooling = batch.pooling;
      one.out = out + bag * dim;
      one.out_stride = dim;
      scalar_->bag(options_.format, one);
    }
  }

  void update(const Batch& batch, const float* gradients) {
    const uint32_t dim = options_.format.dim;
    ++step_.step;
    std::map<int64_t, std::vector<float>> sums;
    for (size_t bag = 0; bag < batch.bags(); ++bag) {
      const auto first = static_cast<size_t>(batch.offsets[bag]);
      const auto end = static_cast<size_t>(batch.offsets[bag + 1]);
      for (size_t i = first; i < end; ++i) {
        float weight = batch.weights == nullptr ? 1.0f : batch.weights[i];
        if (batch.pooling == Pooling::kMean) weight /= static_cast<float>(end - first);
        auto& sum = sums.try_emplace(batch.ids[i], dim, 0.0f).first->second;
        scalar_->accumulate(sum.data(), gradients + bag * dim, weight, dim);
      }
    }
    const OptimizerStep step = prepared(step_);
    for (const auto& [id, sum] : sums) {
      if (options_.admit_after > 1 && !rows_.contains(id)) continue;
      scalar_->apply(options_.format, step, sum.data(), row(id).data());
      used(id);
    }
  }

  void write(int64_t id, const float* elements) {
    std::vector<std::byte>& bytes = row(id);
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    scalar_->encode(options_.format, elements, bytes.data());
    used(id);
  }

  /// Of an id that may never have been used before.
  std::vector<float> read(int64_t id) {
    std::vector<float> elements(options_.format.dim);
    scalar_->decode(options_.format, row(id).data(), elements.data());
    return elements;
  }

  /// A look-up that may insert has these ids, of a table that admits them when it has seen them
  /// often.
  void see(std::span<const int64_t> ids) {
    for (const int64_t id : ids) {
      if (rows_.contains(id) || ++seen_[id] < options_.admit_after) continue;
      (void)row(id);
    }
  }
  /// False if it has no row.
  bool remove(int64_t id) {
    uses_.erase(id);
    return rows_.erase(id) > 0;
  }
  /// How many went.
  size_t expire(const Expiry& expiry) {
    return std::erase_if(rows_, [&](const auto& row) {
      const RowUse use = uses_.at(row.first);
      return (expiry.unused_for == 0 || step_.step - use.last >= expiry.unused_for) &&
             (expiry.used_fewer_than == 0 || use.uses < expiry.used_fewer_than);
    });
  }

  size_t rows() const { return rows_.size(); }
  const std::map<int64_t, std::vector<std::byte>>& all() const { return rows_; }

 private:
  void used(int64_t id) {
    RowUse& use = uses_[id];
    use.last = static_cast<uint32_t>(step_.step);
    ++use.uses;
  }
  std::vector<std::byte>& row(int64_t id) {
    const auto found = rows_.find(id);
    if (found != rows_.end()) return found->second;
    std::vector<std::byte> bytes(options_.format.stride());
    std::vector<float> elements(options_.format.dim);
    options_.initializer.fill(static_cast<uint64_t>(id), elements);
    scalar_->encode(options_.format, elements.data(), bytes.data());
    seen_.erase(id);
    uses_[id] = {static_cast<uint32_t>(step_.step), 0};
    return rows_.emplace(id, std::move(bytes)).first->second;
  }

  const Kernels* scalar_ = kernelsFor(Isa::kScalar);
  TableOptions options_;
  OptimizerStep step_;
  std::map<int64_t, std::vector<std::byte>> rows_;
  std::map<int64_t, RowUse> uses_;
  std::map<int64_t, uint32_t> seen_;  // of those without a row
};

}  // namespace tidepool
