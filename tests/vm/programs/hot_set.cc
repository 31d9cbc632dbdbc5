// SPDX-License-Identifier: Apache-2.0
// `hot_set SIZE HOT SECONDS`: fills SIZE bytes of memory, then updates the last HOT of them at
// random for so long, and counts at the end whether any update was lost. What is filled last finds
// local memory full, so the hot set begins in far memory; it is small, since emulated CXL memory is
// slow.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr uint64_t kBatch = 256;  // updates between two looks at the clock

uint64_t next(uint64_t* state) {  // xorshift64, Marsaglia 2003
  *state ^= *state << 13;
  *state ^= *state >> 7;
  return *state ^= *state << 17;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const uint64_t words = std::strtoull(argv[1], nullptr, 0) / sizeof(uint64_t);
  const uint64_t hot = std::strtoull(argv[2], nullptr, 0) / sizeof(uint64_t);
  if (hot == 0 || hot > words) return 2;
  uint64_t* memory = static_cast<uint64_t*>(std::malloc(words * sizeof(uint64_t)));
  if (memory == nullptr) return 3;
  uint64_t before = 0, after = 0, updates = 0, state = 0x7469646570;
  for (uint64_t i = 0; i < words; ++i) before += memory[i] = i * 0x9e3779b97f4a7c15;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[3]));
  while (std::chrono::steady_clock::now() < end) {
    for (uint64_t i = 0; i < kBatch; ++i) memory[words - hot + next(&state) % hot] += 1;
    updates += kBatch;
  }
  for (uint64_t i = 0; i < words; ++i) after += memory[i];
  std::printf("{\"updates\": %llu, \"verified\": %s}\n", static_cast<unsigned long long>(updates),
              after == before + updates ? "true" : "false");
  return after == before + updates ? 0 : 1;
}
