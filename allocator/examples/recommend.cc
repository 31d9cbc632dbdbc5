// SPDX-License-Identifier: Apache-2.0
// Recommendation, the inference side: a small model after DLRM (Naumov et al. 2019) scores
// candidates for users. Numbers go through a perceptron, categories are looked up in embedding
// tables, what comes out is multiplied pair by pair, and a second perceptron makes a score of it.
// The tables are larger than the local memory they are given: hot rows are there, the others in far
// memory. Weights and requests are made from fixed seeds, so that scores are the same everywhere.
//
//   c++ -std=c++20 -O2 recommend.cc $(pkg-config --cflags --libs tidepool) -o recommend
//   ./recommend [OPTIONS]      such as dram:64M,far:remote:10.0.0.7:7777
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <tidepool/tidepool.hpp>
#include <vector>

namespace tp = tidepool::api;

namespace {

constexpr uint32_t kDim = 32;    // of a row, and of what the numbers become
constexpr size_t kNumbers = 13;  // of a request: age, price, ...
constexpr size_t kBatch = 512;   // candidates that are scored together
constexpr size_t kBatches = 200;

/// A category, and how many values of it a candidate has.
struct Feature {
  const char* name;
  uint64_t rows;
  size_t values;
};
constexpr std::array<Feature, 4> kFeatures = {
    {{"user", 400'000, 1}, {"item", 200'000, 1}, {"watched", 200'000, 20}, {"country", 200, 1}}};
constexpr size_t kVectors = kFeatures.size() + 1;
constexpr size_t kPairs = kVectors * (kVectors - 1) / 2;

/// Layers of a perceptron: y = max(0, W x + b).
class Perceptron {
 public:
  Perceptron(std::vector<size_t> widths, uint32_t seed) : widths_(std::move(widths)) {
    std::minstd_rand random(seed);
    for (size_t layer = 1; layer < widths_.size(); ++layer) {
      const float scale = 2 / std::sqrt(static_cast<float>(widths_[layer - 1]));
      for (size_t i = 0; i < (widths_[layer - 1] + 1) * widths_[layer]; ++i) {
        weights_.push_back((static_cast<float>(random() % 2001) / 1000 - 1) * scale);
      }
    }
  }
  /// The last layer's sums, before they are cut off at 0.
  std::vector<float> operator()(std::vector<float> x) const {
    const float* weight = weights_.data();
    for (size_t layer = 1; layer < widths_.size(); ++layer) {
      if (layer > 1)
        std::transform(x.begin(), x.end(), x.begin(), [](float v) { return std::max(v, 0.0F); });
      std::vector<float> y(widths_[layer]);
      for (float& sum : y) {
        sum = *weight++ * 0.1F;
        for (const float value : x) sum += *weight++ * value;
      }
      x = std::move(y);
    }
    return x;
  }

 private:
  const std::vector<size_t> widths_;
  std::vector<float> weights_;
};

struct Requests {
  std::vector<float> numbers;                              // kBatch x kNumbers
  std::array<std::vector<int64_t>, kFeatures.size()> ids;  // a candidate after the other

  /// Few users, items and countries make most of the traffic.
  explicit Requests(std::minstd_rand& random) {
    const auto unit = [&random] { return static_cast<double>(random() % 1'000'000) / 1e6; };
    for (size_t i = 0; i < kBatch * kNumbers; ++i) numbers.push_back(static_cast<float>(unit()));
    for (size_t f = 0; f < kFeatures.size(); ++f) {
      for (size_t i = 0; i < kBatch * kFeatures[f].values; ++i) {
        const double rank = std::pow(unit(), 6) * static_cast<double>(kFeatures[f].rows);
        ids[f].push_back(static_cast<int64_t>(rank));
      }
    }
  }
};

/// What was looked up, kBatch x kDim floats a feature, and all there is to score with it.
class Model {
 public:
  static tp::Expected<Model> open(tp::Context& context) {
    Model model;
    for (const Feature& feature : kFeatures) {
      tp::TableParams params;
      params.name = feature.name;
      params.rows = feature.rows;
      params.dim = kDim;
      params.element = TIDEPOOL_FLOAT16;
      params.initializer = TIDEPOOL_UNIFORM;  // a trained model would be restored here
      params.init_first = -0.5F;
      params.init_second = 0.5F;
      auto table = tp::Table::make(context, params);
      if (!table) return table.failure();
      model.tables_.push_back(std::move(*table));
    }
    return model;
  }

  tp::Expected<std::vector<float>> score(const Requests& requests) {
    std::vector<tp::Lookup> parts;
    for (size_t f = 0; f < kFeatures.size(); ++f) {
      parts.push_back({.table = tables_[f],
                       .ids = requests.ids[f],
                       .offsets = offsets_[f],
                       .values = looked_up_[f],
                       .pooling = TIDEPOOL_MEAN});
    }
    if (auto done = tp::lookUp(parts); !done) return done.failure();
    std::vector<float> scores;
    for (size_t i = 0; i < kBatch; ++i) scores.push_back(scoreOne(requests, i));
    return scores;
  }

  const std::vector<tp::Table>& tables() const { return tables_; }

 private:
  Model() {
    for (size_t f = 0; f < kFeatures.size(); ++f) {
      looked_up_[f].resize(kBatch * kDim);
      for (size_t i = 0; i <= kBatch; ++i) {
        offsets_[f].push_back(static_cast<int64_t>(i * kFeatures[f].values));
      }
    }
  }

  float scoreOne(const Requests& requests, size_t i) const {
    const auto first = requests.numbers.begin() + static_cast<ptrdiff_t>(i * kNumbers);
    const std::vector<float> dense = bottom_({first, first + kNumbers});
    std::array<const float*, kVectors> vectors{dense.data()};
    for (size_t f = 0; f < kFeatures.size(); ++f) vectors[f + 1] = &looked_up_[f][i * kDim];
    std::vector<float> features = dense;
    for (size_t a = 1; a < kVectors; ++a) {
      for (size_t b = 0; b < a; ++b) {
        float product = 0;
        for (uint32_t k = 0; k < kDim; ++k) product += vectors[a][k] * vectors[b][k];
        features.push_back(product);
      }
    }
    return 1 / (1 + std::exp(-top_(std::move(features))[0]));
  }

  std::vector<tp::Table> tables_;
  std::array<std::vector<int64_t>, kFeatures.size()> offsets_;
  std::array<std::vector<float>, kFeatures.size()> looked_up_;
  Perceptron bottom_{{kNumbers, 64, kDim}, 1};
  Perceptron top_{{kDim + kPairs, 64, 1}, 2};
};

int fail(const tp::Failure& failure) {
  std::fprintf(stderr, "recommend: %s: %s\n", failure.name(), failure.text().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  auto context = argc > 1 ? tp::Context::open(argv[1]) : tp::Context::open();
  if (!context) return fail(context.failure());
  auto model = Model::open(*context);
  if (!model) return fail(model.failure());
  std::minstd_rand random(42);
  std::vector<float> best;
  for (size_t batch = 0; batch < kBatches; ++batch) {
    auto scores = model->score(Requests(random));
    if (!scores) return fail(scores.failure());
    best.push_back(*std::max_element(scores->begin(), scores->end()));
  }
  std::printf("%zu candidates scored; the best of the first batches: %.4f %.4f %.4f\n",
              kBatch * kBatches, best[0], best[1], best[2]);
  for (size_t f = 0; f < kFeatures.size(); ++f) {
    const auto stats = model->tables()[f].stats();
    if (!stats) return fail(stats.failure());
    std::printf("%-8s %7llu rows, %5.2f MiB of local memory, %5.1f %% of look-ups there\n",
                kFeatures[f].name, static_cast<unsigned long long>(stats->rows),
                static_cast<double>(stats->dram_bytes) / (1 << 20),
                100.0 * static_cast<double>(stats->hits) / static_cast<double>(stats->lookups));
  }
}
