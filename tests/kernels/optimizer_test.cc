// SPDX-License-Identifier: Apache-2.0
// Optimizer steps by every instruction set: single ones from any state, and a thousand in a row,
// bit for bit those of loops over single elements; and that they are the optimizers they say.
#include "tests/kernels/reference.h"
#include "tests/kernels/samples.h"

namespace tidepool {
namespace {

using samples::everyKernels;
using samples::Fenced;
using samples::say;
using samples::Values;

OptimizerStep usual() {
  OptimizerStep step;
  step.learning_rate = 0.05f;
  step.momentum = 0.9f;
  return step;
}

std::vector<std::byte> calmRow(const RowFormat& format, Values& values) {
  std::vector<std::byte> row(format.stride());
  reference::encode(format, values.normals(format.dim).data(), row.data());
  for (uint32_t i = 0; i < format.stateFloats(); ++i) {
    reference::put(row.data() + format.stateOffset(), i, std::abs(values.normal()));
  }
  return row;
}

std::vector<std::byte> anyRow(const RowFormat& format, Values& values) {
  std::vector<std::byte> row(format.stride());
  for (std::byte& each : row) each = static_cast<std::byte>(values.bits());
  for (uint32_t i = 0; i < format.stateFloats(); ++i) {
    reference::put(row.data() + format.stateOffset(), i, values.hostile());
  }
  return row;
}

void expectApplied(const RowFormat& format, const OptimizerStep& step, std::vector<std::byte> row,
                   const std::vector<float>& gradient) {
  row.resize(format.rowBytes());
  std::vector<std::byte> expected = row;
  reference::apply(format, step, gradient.data(), expected.data());
  Fenced memory(row.size()), source(gradient.size() * 4);
  source.fill(gradient);
  for (const Kernels* one : everyKernels()) {
    memory.fill(row);
    one->apply(format, step, source.floats(), memory.bytes());
    ASSERT_TRUE(memory.holds(expected)) << say(format, *one);
    ASSERT_TRUE(memory.untouchedBefore()) << say(format, *one);
  }
}

using Format = std::tuple<ElementType, Optimizer>;
class Steps : public testing::TestWithParam<Format> {
 protected:
  RowFormat format(uint32_t dim) const {
    return {std::get<0>(GetParam()), std::get<1>(GetParam()), dim};
  }
};

TEST_P(Steps, AreAlikeAtEveryDim) {
  Values values(21);
  for (const uint32_t dim : samples::manyDims()) {
    OptimizerStep step = usual();
    step.step = 1 + values.below(1000);
    for (const float decay : {0.0f, 0.01f}) {
      step.weight_decay = decay;
      const std::vector<std::byte> row = calmRow(format(dim), values);
      expectApplied(format(dim), prepared(step), row, values.normals(dim));
    }
  }
}

TEST_P(Steps, AreAlikeFromAnyState) {
  Values values(22);
  for (const uint32_t dim : samples::manyDims()) {
    OptimizerStep step = usual();
    std::vector<std::byte> row = anyRow(format(dim), values);
    expectApplied(format(dim), prepared(step), row, values.hostiles(dim));
    step.weight_decay = values.hostile();
    step.epsilon = 0;
    row = anyRow(format(dim), values);
    expectApplied(format(dim), prepared(step), row, values.hostiles(dim));
  }
  for (int round = 0; round < 200; ++round) {
    OptimizerStep step;
    step.learning_rate = values.hostile();
    step.momentum = values.hostile();
    step.epsilon = values.hostile();
    step.adam_rate = values.hostile();
    const std::vector<std::byte> row = anyRow(format(19), values);
    expectApplied(format(19), step, row, values.hostiles(19));
  }
}

// The registers' lanes beyond a row have no part in its sums, whatever becomes of zeros there.
TEST_P(Steps, AreAlikeWhereDecayIsInfinite) {
  Values values(24);
  for (const uint32_t dim : samples::manyDims()) {
    OptimizerStep step = usual();
    step.weight_decay = -std::numeric_limits<float>::infinity();
    const std::vector<std::byte> row = calmRow(format(dim), values);
    expectApplied(format(dim), prepared(step), row, values.normals(dim));
  }
}

/// Moves rows towards a goal: gradient = w - goal, noisy. The same rows for every instruction set.
TEST_P(Steps, AThousandOfThemAreAlikeAndLearn) {
  const RowFormat row_format = format(21);
  Values values(23);
  const std::vector<float> goal = values.normals(21);
  std::vector<std::byte> expected = calmRow(row_format, values);
  memset(expected.data() + row_format.stateOffset(), 0, 4 * row_format.stateFloats());
  const std::vector<std::byte> start = expected;
  std::vector<std::vector<std::byte>> rows(everyKernels().size(), start);
  const auto distance = [&](const std::vector<std::byte>& row) {
    double sum = 0;
    for (uint32_t i = 0; i < 21; ++i) {
      sum += std::pow(reference::element(row_format, row.data(), i) - goal[i], 2);
    }
    return sum;
  };
  for (uint64_t number = 1; number <= 1000; ++number) {
    OptimizerStep step = usual();
    step.step = number;
    step = prepared(step);
    std::vector<float> gradient = reference::decode(row_format, expected.data());
    for (uint32_t i = 0; i < 21; ++i) gradient[i] += 0.01f * values.normal() - goal[i];
    reference::apply(row_format, step, gradient.data(), expected.data());
    for (size_t i = 0; i < rows.size(); ++i) {
      everyKernels()[i]->apply(row_format, step, gradient.data(), rows[i].data());
      ASSERT_EQ(rows[i], expected) << say(row_format, *everyKernels()[i]) << " step " << number;
    }
  }
  // Steps of less than half of what two int8 elements differ by are rounded away.
  const double left = row_format.type == ElementType::kInt8 ? 1 : 0.2;
  EXPECT_LT(distance(expected), left * distance(start)) << "from " << distance(start);
}

std::string nameOf(const testing::TestParamInfo<Format>& format) {
  return std::string(samples::nameOf(std::get<0>(format.param))) + "_" +
         samples::nameOf(std::get<1>(format.param));
}
INSTANTIATE_TEST_SUITE_P(Formats, Steps,
                         testing::Combine(testing::ValuesIn(samples::everyType()),
                                          testing::ValuesIn(samples::everyOptimizer())),
                         nameOf);

/// Two steps of one element by the formulas in float64: what is meant, to float32's precision.
struct Expected {
  Optimizer optimizer;
  double after_one, after_two;
};
class KnownSteps : public testing::TestWithParam<Expected> {};

TEST_P(KnownSteps, AreThoseOfTheFormulas) {
  // w = 1, gradients 0.5 and -0.25, rate 0.1, momentum 0.9, beta 0.9 and 0.999, epsilon 1e-8.
  const RowFormat format{ElementType::kFloat32, GetParam().optimizer, 1};
  for (const Kernels* one : everyKernels()) {
    std::vector<std::byte> row(format.stride());
    reference::put(row.data(), 0, 1.0f);
    OptimizerStep step = usual();
    step.learning_rate = 0.1f;
    const float first = 0.5f, second = -0.25f;
    one->apply(format, prepared(step), &first, row.data());
    EXPECT_NEAR(reference::get<float>(row.data()), GetParam().after_one, 2e-6);
    step.step = 2;
    one->apply(format, prepared(step), &second, row.data());
    EXPECT_NEAR(reference::get<float>(row.data()), GetParam().after_two, 2e-6);
  }
}

constexpr double kTwoSquares = 0.5590169943749475;  // sqrt(0.5^2 + 0.25^2)
// Adam's second step: m = 0.9 * 0.05 - 0.025, v = 0.999 * 0.00025 + 0.0000625, corrected.
const double kAdamSecond = 0.1 * (0.02 / 0.19) / std::sqrt(0.00031225 / (1 - 0.998001));
INSTANTIATE_TEST_SUITE_P(
    Optimizers, KnownSteps,
    testing::Values(Expected{Optimizer::kSgd, 0.95, 0.975},
                    Expected{Optimizer::kMomentum, 0.95, 0.93},
                    Expected{Optimizer::kAdagrad, 0.9, 0.9 + 0.025 / kTwoSquares},
                    Expected{Optimizer::kRowwiseAdagrad, 0.9, 0.9 + 0.025 / kTwoSquares},
                    Expected{Optimizer::kAdam, 0.9, 0.9 - kAdamSecond}));

TEST(Accumulate, AddsGradientsAlike) {
  Values values(24);
  for (const uint32_t dim : samples::manyDims()) {
    for (const float weight : {1.0f, 0.5f, -3.25f, values.hostile()}) {
      const std::vector<float> gradient = values.hostiles(dim), start = values.hostiles(dim);
      std::vector<float> expected = start;
      for (uint32_t i = 0; i < dim; ++i) {
        expected[i] = reference::clean(weight == 1 ? start[i] + gradient[i]
                                                   : std::fma(weight, gradient[i], start[i]));
      }
      for (const Kernels* one : everyKernels()) {
        Fenced sum(dim * 4), source(dim * 4);
        sum.fill(start);
        source.fill(gradient);
        one->accumulate(sum.floats(), source.floats(), weight, dim);
        ASSERT_TRUE(sum.holds(expected) && sum.untouchedBefore()) << isaName(one->isa) << dim;
      }
    }
  }
}

TEST(RowwiseAdagrad, TakesTheMeanOfSquares) {
  const RowFormat format{ElementType::kFloat32, Optimizer::kRowwiseAdagrad, 40};
  const std::vector<float> gradient(40, 3.0f);
  for (const Kernels* one : everyKernels()) {
    std::vector<std::byte> row(format.stride());
    one->apply(format, usual(), gradient.data(), row.data());
    EXPECT_EQ(reference::get<float>(row.data() + format.stateOffset()), 9.0f);
  }
}

}  // namespace
}  // namespace tidepool
