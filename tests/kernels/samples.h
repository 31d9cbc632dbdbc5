// SPDX-License-Identifier: Apache-2.0
// What the kernels' tests feed them: instruction sets, formats and dims to try, values well-behaved
// and hostile, and memory with a page that cannot be touched right behind it.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "allocator/kernels/kernels.h"
#include "runtime/base/units.h"

namespace tidepool::samples {

/// Those that this machine can run.
inline std::vector<const Kernels*> everyKernels() {
  std::vector<const Kernels*> found;
  for (unsigned isa = 0; isa < kIsas; ++isa) {
    if (const Kernels* const one = kernelsFor(static_cast<Isa>(isa))) found.push_back(one);
  }
  return found;
}

inline std::vector<ElementType> everyType() {
  return {ElementType::kFloat32, ElementType::kFloat16, ElementType::kBfloat16, ElementType::kInt8};
}
inline std::vector<Optimizer> everyOptimizer() {
  return {Optimizer::kSgd, Optimizer::kMomentum, Optimizer::kAdagrad, Optimizer::kRowwiseAdagrad,
          Optimizer::kAdam};
}
inline const char* nameOf(ElementType type) {
  static constexpr std::array<const char*, kElementTypes> kNames = {"float32", "float16",
                                                                    "bfloat16", "int8"};
  return kNames[static_cast<size_t>(type)];
}
inline const char* nameOf(Optimizer optimizer) {
  static constexpr std::array<const char*, kOptimizers> kNames = {"sgd", "momentum", "adagrad",
                                                                  "rowwise", "adam"};
  return kNames[static_cast<size_t>(optimizer)];
}
/// On both sides of every width that kernels treat apart.
inline std::vector<uint32_t> manyDims() {
  return {1,  2,  3,   7,   8,   9,   15,  16,  17,  31,  32,  33,  48,   63,   64,
          65, 96, 100, 127, 128, 129, 191, 255, 256, 257, 300, 513, 1000, 4095, 4096};
}

inline std::string say(const RowFormat& format, const Kernels& kernels) {
  return std::string(isaName(kernels.isa)) + " " + nameOf(format.type) + " " +
         nameOf(format.optimizer) + " dim " + std::to_string(format.dim);
}

class Values {
 public:
  explicit Values(uint32_t seed) : random_(seed) {}
  uint32_t below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }
  uint32_t bits() { return static_cast<uint32_t>(random_()); }
  float normal() { return gauss_(random_); }
  /// Any float there is, those that are easily got wrong more often than others.
  float hostile() {
    static constexpr std::array<uint32_t, 22> kHard = {
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000,
        0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xff812345,
        0x7f7fffff, 0xff7fffff, 0x33000000, 0x33000001, 0x387fe000, 0x477fefff,
        0x477ff000, 0x3f808000, 0x3f818000, 0x00008000};
    const uint32_t kind = below(8);
    if (kind == 0) return std::bit_cast<float>(kHard[below(kHard.size())]);
    if (kind == 1) return std::bit_cast<float>(bits());
    if (kind == 2) return std::bit_cast<float>(bits() & 0x807fffff);  // subnormal
    if (kind == 3) return normal() * 1e38f;
    return normal();
  }
  std::vector<float> normals(size_t count) {
    std::vector<float> all(count);
    for (float& x : all) x = normal();
    return all;
  }
  std::vector<float> hostiles(size_t count) {
    std::vector<float> all(count);
    for (float& x : all) x = hostile();
    return all;
  }

 private:
  std::mt19937 random_;
  std::normal_distribution<float> gauss_;
};

/// Bytes that end where a page begins that faults, behind bytes that are watched.
class Fenced {
 public:
  explicit Fenced(size_t size) : size_(size), mapped_(roundUp(size + kBefore, kPageSize)) {
    void* const at = mmap(nullptr, mapped_ + kPageSize, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    base_ = static_cast<std::byte*>(at);
    EXPECT_EQ(mprotect(base_ + mapped_, kPageSize, PROT_NONE), 0);
    memset(base_, kGuard, mapped_);
  }
  ~Fenced() { munmap(base_, mapped_ + kPageSize); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;

  std::byte* bytes() { return base_ + mapped_ - size_; }
  float* floats() { return reinterpret_cast<float*>(bytes()); }
  size_t size() const { return size_; }
  void fill(const std::vector<std::byte>& from) { memcpy(bytes(), from.data(), size_); }
  void fill(const std::vector<float>& from) { memcpy(bytes(), from.data(), size_); }
  bool holds(const std::vector<std::byte>& expected) {
    return memcmp(bytes(), expected.data(), size_) == 0;
  }
  bool holds(const std::vector<float>& expected) {
    return memcmp(bytes(), expected.data(), size_) == 0;
  }
  bool untouchedBefore() {
    for (std::byte* at = base_; at < bytes(); ++at) {
      if (*at != std::byte{kGuard}) return false;
    }
    return true;
  }

 private:
  static constexpr int kGuard = 0xa5;
  static constexpr size_t kBefore = 64;
  size_t size_, mapped_;
  std::byte* base_;
};

}  // namespace tidepool::samples
