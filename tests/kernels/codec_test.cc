// SPDX-License-Identifier: Apache-2.0
// Rows to floats and back: every 16-bit element there is, every kind of rounding, no byte too far.
#include "tests/kernels/reference.h"
#include "tests/kernels/samples.h"

namespace tidepool {
namespace {

using reference::bitsOf;
using reference::floatOf;
using samples::everyKernels;
using samples::Fenced;
using samples::say;
using samples::Values;

bool sameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

class SixteenBits : public testing::TestWithParam<ElementType> {
 protected:
  static constexpr uint32_t kDim = 4096;
  const RowFormat format_{GetParam(), Optimizer::kSgd, kDim};
  /// Encodes `in` by each instruction set and compares with the reference.
  void expectEncoded(const std::vector<float>& in) {
    std::vector<std::byte> expected(format_.rowBytes()), row(format_.rowBytes());
    reference::encode(format_, in.data(), expected.data());
    for (const Kernels* one : everyKernels()) {
      one->encode(format_, in.data(), row.data());
      ASSERT_EQ(row, expected) << say(format_, *one);
    }
  }
};

TEST_P(SixteenBits, AreAllDecodedRight) {
  std::vector<std::byte> row(format_.rowBytes());
  for (uint32_t first = 0; first < 65536; first += kDim) {
    for (uint32_t i = 0; i < kDim; ++i) {
      reference::put(row.data(), i, static_cast<uint16_t>(first + i));
    }
    const std::vector<float> expected = reference::decode(format_, row.data());
    for (const Kernels* one : everyKernels()) {
      std::vector<float> out(kDim);
      one->decode(format_, row.data(), out.data());
      ASSERT_TRUE(sameBits(out, expected)) << say(format_, *one) << " from " << first;
    }
  }
}

TEST_P(SixteenBits, ComeBackAsTheyWere) {
  const bool half = GetParam() == ElementType::kFloat16;
  std::vector<float> in(kDim);
  std::vector<std::byte> row(format_.rowBytes());
  for (uint32_t first = 0; first < 65536; first += kDim) {
    for (uint32_t i = 0; i < kDim; ++i) {
      const auto bits = static_cast<uint16_t>(first + i);
      in[i] = half ? reference::fromFloat16(bits) : reference::fromBfloat16(bits);
    }
    for (const Kernels* one : everyKernels()) {
      one->encode(format_, in.data(), row.data());
      for (uint32_t i = 0; i < kDim; ++i) {
        const uint32_t quiet = std::isnan(in[i]) ? (half ? 0x200 : 0x40) : 0;
        ASSERT_EQ(reference::get<uint16_t>(row.data(), i), (first + i) | quiet);
      }
    }
  }
}

TEST_P(SixteenBits, AreTheNearestToWhatLiesBetweenThem) {
  const bool half = GetParam() == ElementType::kFloat16;
  std::vector<float> in;
  for (uint32_t h = 0; h < 65536; ++h) {
    const auto low = static_cast<uint16_t>(h), high = static_cast<uint16_t>(h + 1);
    const float a = half ? reference::fromFloat16(low) : reference::fromBfloat16(low);
    const float b = half ? reference::fromFloat16(high) : reference::fromBfloat16(high);
    const auto middle = static_cast<float>((double{a} + double{b}) / 2);
    for (const float x : {middle, floatOf(bitsOf(middle) - 1), floatOf(bitsOf(middle) + 1), a}) {
      in.push_back(x);
    }
    if (in.size() == kDim) {
      expectEncoded(in);
      in.clear();
    }
  }
}

TEST_P(SixteenBits, AreTheNearestToAnything) {
  Values values(7);
  for (int round = 0; round < 40; ++round) {
    std::vector<float> in = values.hostiles(kDim);
    for (uint32_t i = 0; i < kDim / 2; ++i) in[i] = floatOf(values.bits());
    expectEncoded(in);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SixteenBits,
                         testing::Values(ElementType::kFloat16, ElementType::kBfloat16),
                         [](const testing::TestParamInfo<ElementType>& type) {
                           return samples::nameOf(type.param);
                         });

TEST(SixteenBits, RoundAsTheStandardSays) {
  EXPECT_EQ(reference::toFloat16(65519.996f), 0x7bff);
  EXPECT_EQ(reference::toFloat16(65520), 0x7c00);
  EXPECT_EQ(reference::toFloat16(1.0f + 0x1p-11f), 0x3c00) << "a tie, to even";
  EXPECT_EQ(reference::toFloat16(1.0f + 3 * 0x1p-11f), 0x3c02) << "a tie, to even";
  EXPECT_EQ(reference::toFloat16(-0x1p-24f), 0x8001) << "subnormal";
  EXPECT_EQ(reference::toFloat16(0x1p-25f), 0) << "a tie, to even";
  EXPECT_EQ(reference::toBfloat16(floatOf(0x3f808000)), 0x3f80) << "a tie, to even";
  EXPECT_EQ(reference::toBfloat16(floatOf(0x3f818000)), 0x3f82) << "a tie, to even";
  EXPECT_EQ(reference::toBfloat16(floatOf(0x7f7fffff)), 0x7f80) << "infinite";
  EXPECT_EQ(reference::toBfloat16(floatOf(0x00018000)), 0x0002) << "subnormal";
}

/// Encodes and decodes rows that end at a page which faults.
void expectRow(const RowFormat& format, const std::vector<float>& in) {
  std::vector<std::byte> expected(format.rowBytes(), std::byte{0x5a});
  Fenced row(expected.size()), source(format.dim * 4), out(format.dim * 4);
  for (const Kernels* one : everyKernels()) {
    row.fill(expected);  // with a state, of which encode leaves its hands
    source.fill(in);
    one->encode(format, source.floats(), row.bytes());
    one->decode(format, row.bytes(), out.floats());
    std::vector<std::byte> wanted = expected;
    reference::encode(format, in.data(), wanted.data());
    // The padding between elements and what follows is nobody's: it stays as it was.
    ASSERT_TRUE(row.holds(wanted)) << say(format, *one);
    ASSERT_TRUE(out.holds(reference::decode(format, wanted.data()))) << say(format, *one);
    ASSERT_TRUE(row.untouchedBefore() && out.untouchedBefore()) << say(format, *one);
  }
}

TEST(Rows, OfAnyFormatAreWrittenAndReadWithinTheirFields) {
  Values values(1);
  for (const ElementType type : samples::everyType()) {
    for (const uint32_t dim : samples::manyDims()) {
      expectRow({type, Optimizer::kAdam, dim}, values.normals(dim));
      expectRow({type, Optimizer::kRowwiseAdagrad, dim}, values.hostiles(dim));
      expectRow({type, Optimizer::kSgd, dim}, values.hostiles(dim));
    }
  }
}

TEST(Int8Rows, OfAllSizesAreScaledAlike) {
  Values values(2);
  for (int exponent = -149; exponent < 127; ++exponent) {
    std::vector<float> in = values.normals(37);
    for (float& x : in) x = std::ldexp(std::clamp(x, -1.99f, 1.99f), exponent);
    expectRow({ElementType::kInt8, Optimizer::kSgd, 37}, in);
  }
}

TEST(Int8Rows, HoldZerosAndTheGreatestExactly) {
  const RowFormat format{ElementType::kInt8, Optimizer::kSgd, 4};
  for (const Kernels* one : everyKernels()) {
    std::vector<std::byte> row(format.rowBytes());
    std::vector<float> out(4);
    one->encode(format, std::vector<float>{0, -127, 63.5f, 62.5f}.data(), row.data());
    one->decode(format, row.data(), out.data());
    EXPECT_EQ(out, (std::vector<float>{0, -127, 64, 62})) << "halves go to even ones";
    one->encode(format, std::vector<float>{0, 0, -0.0f, 0}.data(), row.data());
    one->decode(format, row.data(), out.data());
    EXPECT_EQ(out, (std::vector<float>{0, 0, 0, 0}));
  }
}

TEST(Int8Rows, WithWhatIsNotFiniteShowIt) {
  const RowFormat format{ElementType::kInt8, Optimizer::kSgd, 20};
  for (const uint32_t bad : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc12345u, 0x7f800001u}) {
    std::vector<float> in(20, 1.0f), out(20);
    in[17] = floatOf(bad);
    for (const Kernels* one : everyKernels()) {
      std::vector<std::byte> row(format.rowBytes());
      one->encode(format, in.data(), row.data());
      one->decode(format, row.data(), out.data());
      for (const float x : out) EXPECT_EQ(bitsOf(x), 0x7fc00000u) << isaName(one->isa);
    }
  }
}

TEST(Float32Rows, KeepEveryBit) {
  const RowFormat format{ElementType::kFloat32, Optimizer::kSgd, 6};
  const std::vector<float> in = {
      floatOf(0x7f800001), floatOf(0xffc12345), floatOf(1), -0.0f, floatOf(0xff800000), 1};
  for (const Kernels* one : everyKernels()) {
    std::vector<std::byte> row(format.rowBytes());
    std::vector<float> out(6);
    one->encode(format, in.data(), row.data());
    one->decode(format, row.data(), out.data());
    EXPECT_TRUE(sameBits(in, out)) << isaName(one->isa);
  }
}

}  // namespace
}  // namespace tidepool
