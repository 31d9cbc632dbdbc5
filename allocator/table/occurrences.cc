// SPDX-License-Identifier: Apache-2.0
// Occurrences: a stable radix sort, least significant digit first, over as many digits as the
// largest row number has.
#include "allocator/table/occurrences.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

constexpr unsigned kDigitBits = 11;  // the counters of one pass stay in the first-level cache
constexpr size_t kDigits = size_t{1} << kDigitBits;

}  // namespace

void Occurrences::sortByRow(std::span<const RowNumber> rows, std::span<const uint32_t> without) {
  const size_t count = rows.size();
  TP_CHECK_OP(count + without.size(), <=, size_t{UINT32_MAX});  // positions have 32 bits
  keys_.assign(rows.begin(), rows.end());
  positions_.resize(count);
  std::iota(positions_.begin(), positions_.end(), 0u);
  for (size_t i = 0, skipped = 0; !without.empty() && i < count; ++i) {
    while (skipped < without.size() && without[skipped] == i + skipped) ++skipped;
    positions_[i] += static_cast<uint32_t>(skipped);
  }
  other_keys_.resize(count);
  other_.resize(count);
  RowNumber bits = 0;
  for (const RowNumber row : rows) bits |= row;
  for (unsigned shift = 0; shift < 64 && bits >> shift != 0; shift += kDigitBits) {
    std::array<uint32_t, kDigits> ends{};
    for (const RowNumber key : keys_) ++ends[key >> shift & (kDigits - 1)];
    uint32_t sum = 0;
    for (uint32_t& end : ends) sum += std::exchange(end, sum);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t to = ends[keys_[i] >> shift & (kDigits - 1)]++;
      other_keys_[to] = keys_[i];
      other_[to] = positions_[i];
    }
    keys_.swap(other_keys_);
    positions_.swap(other_);
  }
}

void Occurrences::order(std::span<const RowNumber> rows, std::span<const uint32_t> without) {
  sortByRow(rows, without);
  unique_.clear();
  starts_.clear();
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (i > 0 && keys_[i] == keys_[i - 1]) continue;
    unique_.push_back(keys_[i]);
    starts_.push_back(static_cast<uint32_t>(i));
  }
  starts_.push_back(static_cast<uint32_t>(keys_.size()));
}

}  // namespace tidepool
