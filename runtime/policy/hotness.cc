// SPDX-License-Identifier: Apache-2.0
// Scores and the capacity-set threshold. See hotness.h.
#include "runtime/policy/hotness.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace tidepool {

Hotness::Hotness(std::span<std::byte> frequency, std::span<std::byte> momentum, uint64_t cool_every)
    : frequency_(frequency), momentum_(momentum), cool_every_(cool_every), until_cool_(cool_every) {
  TP_CHECK_OP(cool_every, >, 0u);
}

void Hotness::record(uint64_t key, uint32_t weight) {
  frequency_.add(key, weight);
  momentum_.add(key, weight);
  ++samples_;
  if (--until_cool_ == 0) {
    until_cool_ = cool_every_;
    cool();
  }
}

uint32_t Hotness::score(uint64_t key) const {
  return frequency_.estimate(key) + momentum_.estimate(key);
}

void Hotness::cool() {
  momentum_.cool();
  if (++coolings_ % kFrequencyPeriod == 0) frequency_.cool();
}

void ScoreHistogram::add(uint32_t score, Bytes size) {
  TP_CHECK_OP(score, <, bytes_.size());
  bytes_[score] += size.value();
}

Bytes ScoreHistogram::from(uint32_t score) const {
  uint64_t sum = 0;
  for (size_t i = score; i < bytes_.size(); ++i) sum += bytes_[i];
  return Bytes(sum);
}

HeatThreshold fitThreshold(const ScoreHistogram& histogram, Bytes capacity, double warm_share,
                           HeatThreshold previous) {
  TP_CHECK(warm_share >= 0);
  const auto allowance = static_cast<uint64_t>(static_cast<double>(capacity.value()) * warm_share);
  HeatThreshold fitted;
  fitted.hot = Hotness::kMaxScore + 1;
  uint64_t sum = 0;
  while (fitted.hot > 1) {
    sum += histogram.at(fitted.hot - 1).value();
    // Falling below the previous threshold needs some room to spare.
    const uint64_t spare = fitted.hot - 1 < previous.hot ? allowance / 8 : 0;
    if (sum + std::min(spare, capacity.value()) > capacity.value()) break;
    --fitted.hot;
  }
  fitted.warm = fitted.hot > 1 ? fitted.hot - 1 : 1;
  const uint64_t most = capacity.value() + allowance;
  uint64_t covered = histogram.from(fitted.warm).value();
  while (fitted.warm > 1) {
    covered += histogram.at(fitted.warm - 1).value();
    if (covered > most) break;
    --fitted.warm;
  }
  return fitted;
}

}  // namespace tidepool
