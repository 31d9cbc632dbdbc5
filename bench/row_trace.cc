// SPDX-License-Identifier: Apache-2.0
// Generators of embedding lookups. See row_trace.h.
#include "bench/row_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

namespace tidepool::bench {
namespace {

struct Point {
  double rows, lookups;
};
// The first point stands for a single row of a million; a table with fewer has no hotter one.
constexpr std::array<Point, 7> kPoints = {{{1e-6, 0.02},
                                           {0.002, 0.31},
                                           {0.009, 0.42},
                                           {0.05, 0.60},
                                           {0.12, 0.72},
                                           {0.37, 0.89},
                                           {1.0, 1.0}}};

double between(double x, double x0, double y0, double x1, double y1) {
  return y0 * std::pow(x / x0, std::log(y1 / y0) / std::log(x1 / x0));
}

class Draw {
 public:
  virtual ~Draw() = default;
  virtual uint32_t rank(double u) const = 0;
};

class SkewDraw final : public Draw {
 public:
  explicit SkewDraw(uint32_t rows) : skew_(rows) {}
  uint32_t rank(double u) const override { return skew_.rankAt(u); }

 private:
  ProductionSkew skew_;
};

class UniformDraw final : public Draw {
 public:
  explicit UniformDraw(uint32_t rows) : rows_(rows) {}
  uint32_t rank(double u) const override { return static_cast<uint32_t>(u * rows_); }

 private:
  double rows_;
};

class ZipfDraw final : public Draw {
 public:
  ZipfDraw(uint32_t rows, double exponent) : sum_(rows) {
    double sum = 0;
    for (uint32_t i = 0; i < rows; ++i) sum_[i] = sum += std::pow(i + 1.0, -exponent);
  }
  uint32_t rank(double u) const override {
    const auto at = std::upper_bound(sum_.begin(), sum_.end(), u * sum_.back());
    return static_cast<uint32_t>(std::min<ptrdiff_t>(at - sum_.begin(), std::ssize(sum_) - 1));
  }

 private:
  std::vector<double> sum_;
};

std::unique_ptr<Draw> makeDraw(std::string_view name, uint32_t rows) {
  if (name == "uniform") return std::make_unique<UniformDraw>(rows);
  if (name.starts_with("zipf-")) {
    return std::make_unique<ZipfDraw>(rows, std::stod(std::string(name.substr(5))));
  }
  return std::make_unique<SkewDraw>(rows);
}

// std's distributions differ between libraries; these do not.
double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }
uint32_t below(std::mt19937_64& random, uint64_t bound) {
  return static_cast<uint32_t>(uniform(random) * static_cast<double>(bound));
}

void shuffle(std::vector<uint32_t>& rows, std::mt19937_64& random) {
  for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[below(random, i)]);
}

void rotate(std::vector<uint32_t>& row_of_rank, std::mt19937_64& random, RowTrace& trace) {
  const auto hottest = static_cast<uint32_t>(row_of_rank.size() * Rotation::kHottest);
  const auto exchanges = static_cast<uint32_t>(hottest * Rotation::kShare);
  for (uint32_t i = 0; i < exchanges; ++i) {
    uint32_t& a = row_of_rank[below(random, hottest)];
    uint32_t& b = row_of_rank[below(random, row_of_rank.size())];
    trace.exchanges.push_back({trace.lookups.size(), a, b});
    std::swap(a, b);
  }
}

}  // namespace

double ProductionSkew::lookupShare(double share) {
  size_t i = 1;
  while (i + 1 < kPoints.size() && share > kPoints[i].rows) ++i;
  const Point &a = kPoints[i - 1], &b = kPoints[i];
  return between(share, a.rows, a.lookups, b.rows, b.lookups);
}

uint32_t ProductionSkew::rankAt(double u) const {
  size_t i = 1;
  while (i + 1 < kPoints.size() && u > kPoints[i].lookups) ++i;
  const Point &a = kPoints[i - 1], &b = kPoints[i];
  if (u < a.lookups) return 0;
  const double share = between(u, a.lookups, a.rows, b.lookups, b.rows);
  return static_cast<uint32_t>(std::min<double>(share * rows_, rows_ - 1.0));
}

double ProductionSkew::frequency(uint32_t rank) const {
  const double before = rank == 0 ? 0 : lookupShare(static_cast<double>(rank) / rows_);
  return lookupShare((rank + 1.0) / rows_) - before;
}

const std::vector<std::string>& rowTraceNames() {
  static const std::vector<std::string> names = {"skew",      "rotating", "uniform", "zipf-0.8",
                                                 "zipf-1.05", "zipf-1.3", "scan",    "change"};
  return names;
}

RowTrace makeRowTrace(std::string_view name, const RowTraceSize& size, uint64_t seed) {
  const auto& names = rowTraceNames();
  RowTrace trace{.name = std::string(name), .rows = size.rows, .measured = size.measured};
  if (std::find(names.begin(), names.end(), name) == names.end()) return trace;
  std::mt19937_64 random(seed);
  std::vector<uint32_t> row_of_rank(size.rows);
  std::iota(row_of_rank.begin(), row_of_rank.end(), 0u);
  shuffle(row_of_rank, random);
  if (name == "skew" || name == "rotating") {
    trace.frequency.resize(size.rows);
    const ProductionSkew skew(size.rows);
    for (uint32_t i = 0; i < size.rows; ++i) trace.frequency[row_of_rank[i]] = skew.frequency(i);
  }
  const std::unique_ptr<Draw> draw = makeDraw(name, size.rows);
  const auto period = static_cast<size_t>(size.rows * Rotation::kPeriod);
  const size_t change = size.measured + (size.lookups - size.measured) / 2;
  uint32_t scanned = 0;
  trace.lookups.reserve(size.lookups);
  for (size_t i = 0; i < size.lookups; ++i) {
    if (name == "rotating" && i % period == 0 && i > 0) rotate(row_of_rank, random, trace);
    if (name == "change" && i == change) shuffle(row_of_rank, random);
    if (name == "scan" && i % 4 == 3) {
      trace.lookups.push_back(scanned++ % size.rows);
    } else {
      trace.lookups.push_back(row_of_rank[draw->rank(uniform(random))]);
    }
  }
  return trace;
}

}  // namespace tidepool::bench
