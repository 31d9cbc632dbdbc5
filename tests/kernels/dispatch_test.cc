// SPDX-License-Identifier: Apache-2.0
// Which kernels a processor gets, and what is worked out once for a batch.
#include "tests/kernels/samples.h"

#include <cmath>
#include <fstream>
#include <sstream>

namespace tidepool {
namespace {

bool processorHas(const std::string& flag) {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word == flag) return true;
    }
    return false;
  }
  return false;
}

TEST(Dispatch, GivesWhatTheProcessorHas) {
  EXPECT_NE(kernelsFor(Isa::kScalar), nullptr);
  EXPECT_EQ(kernelsFor(Isa::kAvx2) != nullptr, processorHas("avx2") && processorHas("f16c"));
  EXPECT_EQ(kernelsFor(Isa::kAvx512) != nullptr, processorHas("avx512bw"));
  EXPECT_EQ(kernelsFor(static_cast<Isa>(kIsas)), nullptr);
}

TEST(Dispatch, ChoosesTheBestOnce) {
  EXPECT_EQ(&kernels(), samples::everyKernels().back());
  EXPECT_EQ(&kernels(), &kernels());
}

TEST(Dispatch, NamesThem) {
  for (const Kernels* one : samples::everyKernels()) EXPECT_EQ(kernelsFor(one->isa), one);
  EXPECT_STREQ(isaName(Isa::kScalar), "scalar");
  EXPECT_STREQ(isaName(Isa::kAvx2), "avx2");
  EXPECT_STREQ(isaName(Isa::kAvx512), "avx512");
}

TEST(Prepared, HasBothCorrectionsOfAdam) {
  OptimizerStep settings;
  settings.learning_rate = 0.25f;
  for (const uint64_t step : {1ull, 2ull, 3ull, 10ull, 1000ull, 123456ull, 1ull << 40}) {
    settings.step = step;
    const double first = 1 - std::pow(double{settings.beta1}, double(step));
    const double second = 1 - std::pow(double{settings.beta2}, double(step));
    EXPECT_FLOAT_EQ(prepared(settings).adam_rate, float(0.25 * std::sqrt(second) / first));
  }
  settings.step = ~0ull;
  EXPECT_EQ(prepared(settings).adam_rate, 0.25f) << "nothing is left to correct";
}

TEST(Prepared, LeavesTheRestAlone) {
  OptimizerStep settings;
  settings.momentum = 0.5f;
  settings.step = 7;
  const OptimizerStep after = prepared(settings);
  EXPECT_EQ(after.momentum, 0.5f);
  EXPECT_EQ(after.step, 7u);
  EXPECT_EQ(after.learning_rate, settings.learning_rate);
}

}  // namespace
}  // namespace tidepool
