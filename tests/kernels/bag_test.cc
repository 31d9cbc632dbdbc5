// SPDX-License-Identifier: Apache-2.0
// Bags of rows, by every instruction set, against loops over single elements.
#include "tests/kernels/reference.h"
#include "tests/kernels/samples.h"

namespace tidepool {
namespace {

using samples::everyKernels;
using samples::Fenced;
using samples::say;
using samples::Values;

/// A small table, each row of which ends where the next cannot be mistaken for it, and bags of it.
class Bags {
 public:
  Bags(const RowFormat& format, uint32_t rows, Values& values)
      : format_(format), table_(rows * size_t{format.stride()}), values_(values) {
    // Whatever bits: each is an element, or a scale.
    for (size_t i = 0; i + 4 <= table_.size(); i += 4) {
      const uint32_t word = values.bits();
      memcpy(&table_[i], &word, 4);
    }
  }
  /// Makes rows hold normal numbers.
  void calm() {
    for (size_t at = 0; at < table_.size(); at += format_.stride()) {
      reference::encode(format_, values_.normals(format_.dim).data(), &table_[at]);
    }
  }
  void add(uint32_t rows) {
    const size_t known = table_.size() / format_.stride();
    for (uint32_t i = 0; i < rows; ++i) {
      const size_t row = values_.below(static_cast<uint32_t>(known));
      rows_.push_back(&table_[row * format_.stride()]);
    }
    offsets_.push_back(static_cast<uint32_t>(rows_.size()));
  }
  BagBatch batch(const std::vector<float>* weights, Pooling pooling, float* out,
                 size_t out_stride) const {
    return {rows_.data(),
            offsets_.data(),
            offsets_.size() - 1,
            weights != nullptr ? weights->data() : nullptr,
            pooling,
            out,
            out_stride};
  }
  size_t rows() const { return rows_.size(); }
  size_t bags() const { return offsets_.size() - 1; }
  std::vector<const std::byte*>& addresses() { return rows_; }
  const std::vector<uint32_t>& offsets() const { return offsets_; }

 private:
  RowFormat format_;
  std::vector<std::byte> table_;
  Values& values_;
  std::vector<const std::byte*> rows_;
  std::vector<uint32_t> offsets_{0};
};

/// The results of all instruction sets are the reference's, with gaps between them left alone.
void expectPooled(const RowFormat& format, const Bags& bags, const std::vector<float>* weights,
                  Pooling pooling, size_t gap) {
  const size_t stride = format.dim + gap;
  std::vector<float> expected(bags.bags() * stride - gap, 42.0f);
  reference::bag(format, bags.batch(weights, pooling, expected.data(), stride));
  for (const Kernels* one : everyKernels()) {
    Fenced out(expected.size() * 4);
    out.fill(std::vector<float>(expected.size(), 42.0f));
    one->bag(format, bags.batch(weights, pooling, out.floats(), stride));
    ASSERT_TRUE(out.holds(expected)) << say(format, *one) << (weights ? " weighted" : "")
                                     << (pooling == Pooling::kMean ? " mean" : " sum");
    ASSERT_TRUE(out.untouchedBefore()) << say(format, *one);
  }
}

void expectPooledAllWays(const RowFormat& format, const Bags& bags, const std::vector<float>& w) {
  expectPooled(format, bags, nullptr, Pooling::kSum, 0);
  expectPooled(format, bags, nullptr, Pooling::kMean, 3);
  expectPooled(format, bags, &w, Pooling::kSum, 16);
  expectPooled(format, bags, &w, Pooling::kMean, 1);
}

class BagsOf : public testing::TestWithParam<ElementType> {};

TEST_P(BagsOf, NumbersAreAddedInTheirOrder) {
  Values values(11);
  for (const uint32_t dim : samples::manyDims()) {
    const RowFormat format{GetParam(), Optimizer::kRowwiseAdagrad, dim};
    Bags bags(format, 9, values);
    bags.calm();
    for (const uint32_t rows : {0u, 1u, 2u, 5u, 0u, 11u}) bags.add(rows);
    expectPooledAllWays(format, bags, values.normals(bags.rows()));
  }
}

TEST_P(BagsOf, AnyBitsAreAddedAlike) {
  Values values(12);
  for (const uint32_t dim : samples::manyDims()) {
    const RowFormat format{GetParam(), Optimizer::kSgd, dim};
    Bags bags(format, 5, values);
    for (const uint32_t rows : {3u, 1u, 0u, 2u, 4u}) bags.add(rows);
    expectPooledAllWays(format, bags, values.hostiles(bags.rows()));
  }
}

TEST_P(BagsOf, ManyRowsAreAddedAlike) {
  Values values(13);
  const RowFormat format{GetParam(), Optimizer::kAdam, 64};
  Bags bags(format, 100, values);
  bags.calm();
  for (int i = 0; i < 30; ++i) bags.add(values.below(60));
  bags.add(2000);
  bags.add(0);
  expectPooledAllWays(format, bags, values.normals(bags.rows()));
}

TEST_P(BagsOf, RowsThatEndAtAPageThatFaultsAreReadToTheirEndOnly) {
  Values values(14);
  for (const uint32_t dim : samples::manyDims()) {
    const RowFormat format{GetParam(), Optimizer::kSgd, dim};
    Fenced row(format.rowBytes());
    reference::encode(format, values.normals(dim).data(), row.bytes());
    Bags bags(format, 1, values);
    bags.add(2);
    for (const std::byte*& at : bags.addresses()) at = row.bytes();
    expectPooledAllWays(format, bags, values.normals(2));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BagsOf, testing::ValuesIn(samples::everyType()),
                         [](const testing::TestParamInfo<ElementType>& type) {
                           return samples::nameOf(type.param);
                         });

TEST(Bags, CanBeSharedOutAmongThreadsInAnyWay) {
  Values values(15);
  const RowFormat format{ElementType::kFloat16, Optimizer::kSgd, 100};
  Bags bags(format, 50, values);
  bags.calm();
  for (int i = 0; i < 40; ++i) bags.add(values.below(30));
  const std::vector<float> weights = values.normals(bags.rows());
  std::vector<float> whole(bags.bags() * 100);
  kernels().bag(format, bags.batch(&weights, Pooling::kMean, whole.data(), 100));
  std::vector<float> parts(whole.size());
  for (size_t first = 0; first < bags.bags();) {
    const size_t count = std::min<size_t>(1 + values.below(7), bags.bags() - first);
    BagBatch part = bags.batch(&weights, Pooling::kMean, parts.data() + first * 100, 100);
    part.offsets += first;  // they go on counting from the first row of all
    part.bags = count;
    kernels().bag(format, part);
    first += count;
  }
  EXPECT_EQ(memcmp(whole.data(), parts.data(), whole.size() * 4), 0);
}

TEST(Bags, AreWhatTheyAreSaidToBe) {
  const RowFormat format{ElementType::kFloat32, Optimizer::kSgd, 2};
  const std::vector<float> one = {1, 2}, two = {10, 20};
  const std::byte* const rows[] = {reinterpret_cast<const std::byte*>(one.data()),
                                   reinterpret_cast<const std::byte*>(two.data())};
  const uint32_t offsets[] = {0, 2, 2};
  const float weights[] = {3, 0.5f};
  for (const Kernels* each : everyKernels()) {
    std::vector<float> out(4, 7);
    BagBatch batch{rows, offsets, 2, nullptr, Pooling::kSum, out.data(), 2};
    each->bag(format, batch);
    EXPECT_EQ(out, (std::vector<float>{11, 22, 0, 0}));
    batch.pooling = Pooling::kMean;
    each->bag(format, batch);
    EXPECT_EQ(out, (std::vector<float>{5.5f, 11, 0, 0}));
    batch.weights = weights;
    each->bag(format, batch);
    EXPECT_EQ(out, (std::vector<float>{4, 8, 0, 0})) << "divided by the rows, not by the weights";
    batch.pooling = Pooling::kSum;
    each->bag(format, batch);
    EXPECT_EQ(out, (std::vector<float>{8, 16, 0, 0}));
  }
}

TEST(Bags, CanBeNone) {
  const uint32_t offsets[] = {0, 0, 0};
  std::vector<float> out(32, 1);
  const RowFormat format{ElementType::kInt8, Optimizer::kSgd, 16};
  for (const Kernels* one : everyKernels()) {
    one->bag(format, {nullptr, nullptr, 0, nullptr, Pooling::kSum, nullptr, 0});
    one->bag(format, {nullptr, offsets, 2, nullptr, Pooling::kMean, out.data(), 16});
    EXPECT_EQ(out, std::vector<float>(32, 0));
  }
}

}  // namespace
}  // namespace tidepool
