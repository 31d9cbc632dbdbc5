// SPDX-License-Identifier: Apache-2.0
// Gather loops of every kind are found and foretold; what is no such loop is left alone, whatever
// registers and memory hold.
#include "runtime/policy/indirect_prefetcher.h"

#include <gtest/gtest.h>

#include "tests/policy/gather_model.h"

namespace tidepool {
namespace {

constexpr uint64_t kIndexes = 0x20'0000'0000;
constexpr uint64_t kCode = 0x55'5555;

struct Loop {
  uint64_t width = 4;     // of an index
  int64_t stride = 400;   // of a row
  bool down = false;      // goes through the index array from its end
  size_t where = 3;       // register, or from 16 on a stack word; from 112 on: a pair of registers
  bool advanced = false;  // the pointer is past the element already
  uint64_t step = 0;      // 0: as wide as an index
  uint64_t rows = 1'000'000;
  uint64_t table = 0x10'0000'0040;
  int thread = 1;
  uint64_t code = kCode;
};

/// Writes an index array of random rows.
std::vector<uint64_t> makeIndex(GatherModel& model, const Loop& loop, size_t count, uint64_t at) {
  const uint64_t step = loop.step != 0 ? loop.step : loop.width;
  std::vector<uint64_t> rows(count);
  std::vector<std::byte> bytes(count * step + 8);
  for (size_t i = 0; i < count; ++i) {
    rows[i] = model.random() % loop.rows;
    std::memcpy(&bytes[i * step], &rows[i], loop.width);
  }
  model.put(at, bytes.data(), bytes.size());
  return rows;
}

void gather(GatherModel& model, IndirectPrefetcher& prefetcher, const Loop& loop, size_t count,
            uint64_t at = kIndexes) {
  const uint64_t step = loop.step != 0 ? loop.step : loop.width;
  const std::vector<uint64_t> rows = makeIndex(model, loop, count, at);
  std::array<uint64_t, IndexPlace::kStackWords> stack{};
  for (size_t n = 0; n < count; ++n) {
    const size_t i = loop.down ? count - 1 - n : n;
    FaultSample sample = model.noise(loop.code);
    sample.thread = loop.thread;
    const uint64_t element = at + i * step + (loop.advanced ? loop.width : 0);
    if (loop.where < 16) sample.registers[loop.where] = element;
    if (loop.where >= 16 && loop.where < IndexPlace::kSingle) stack[loop.where - 16] = element;
    if (loop.where >= IndexPlace::kSingle) {
      sample.registers[8] = at;
      sample.registers[9] = i;
    }
    model.put(GatherModel::kStack - IndexPlace::kRedZone, stack.data(), sizeof stack);
    const uint64_t row = loop.table + rows[i] * static_cast<uint64_t>(loop.stride);
    const auto size = static_cast<uint64_t>(std::abs(loop.stride));
    for (uint64_t byte = 0; byte < size; byte = ((row + byte) | 4095) + 1 - row) {
      sample.address = row + byte;
      model.use(sample.address);
      model.touch(prefetcher, sample);
    }
  }
}

void expectForetold(const GatherModel& model, const IndirectPrefetcher& prefetcher, double share) {
  const auto fetched = static_cast<double>(model.fetched);
  EXPECT_GT(fetched, share * (fetched + static_cast<double>(model.faults)));
  EXPECT_GT(static_cast<double>(model.used), 0.9 * fetched);
  EXPECT_EQ(prefetcher.stats().foretold, model.fetched);
  EXPECT_LE(prefetcher.stats().used, model.fetched);
  EXPECT_GT(static_cast<double>(prefetcher.stats().used), 0.8 * fetched);
}

TEST(IndirectPrefetcher, FindsIndexArraysWhereverTheirAddressIs) {
  for (const size_t where : {0u, 3u, 15u, 16u, 95u, 111u, 200u}) {
    for (const uint64_t width : {4u, 8u}) {
      for (const bool advanced : {false, true}) {
        if (where == 200 && advanced) continue;
        GatherModel model(where + width);
        IndirectPrefetcher prefetcher;
        gather(model, prefetcher, {.width = width, .where = where, .advanced = advanced}, 20'000);
        SCOPED_TRACE(testing::Message() << where << " " << width << " " << advanced);
        expectForetold(model, prefetcher, 0.9);
      }
    }
  }
}

TEST(IndirectPrefetcher, FindsAnyStrideAndDirection) {
  GatherModel dice(7);
  for (int round = 0; round < 60; ++round) {
    Loop loop;
    loop.width = dice.random() % 2 == 0 ? 4 : 8;
    loop.stride = static_cast<int64_t>(4 + dice.random() % 4000);
    loop.down = dice.random() % 2 == 0;
    loop.where = dice.random() % IndexPlace::kSingle;
    loop.step = loop.width * (1 + dice.random() % 3);
    if (dice.random() % 4 == 0) {
      loop.stride = -loop.stride;
      loop.table += loop.rows * 4100;
    }
    GatherModel model(static_cast<uint64_t>(round));
    IndirectPrefetcher prefetcher;
    gather(model, prefetcher, loop, 10'000);
    SCOPED_TRACE(testing::Message() << loop.width << " " << loop.stride << " " << loop.down << " "
                                    << loop.where << " " << loop.step);
    expectForetold(model, prefetcher, 0.8);
  }
}

TEST(IndirectPrefetcher, FindsArraysOfPointers) {
  for (const int64_t step : {8, 32, -32}) {
    GatherModel model(static_cast<uint64_t>(step + 100));
    IndirectPrefetcher prefetcher;
    constexpr size_t kCount = 20'000;
    std::vector<uint64_t> pointers(kCount * 4 + 8);
    const size_t words = static_cast<size_t>(std::abs(step)) / 8;
    for (size_t i = 0; i < kCount; ++i) {
      pointers[i * words] = model.far_begin + model.random() % (1u << 30);
    }
    model.put(kIndexes, pointers.data(), pointers.size() * 8);
    for (size_t n = 0; n < kCount; ++n) {
      const size_t i = step > 0 ? n : kCount - 1 - n;
      FaultSample sample = model.noise(kCode);
      // The register points into the structure, the pointer is not its first word.
      sample.registers[12] = kIndexes + i * words * 8 + (words > 1 ? 16 : 0);
      sample.address = pointers[i * words] + 24;
      model.use(sample.address);
      model.touch(prefetcher, sample);
    }
    SCOPED_TRACE(step);
    expectForetold(model, prefetcher, 0.9);
  }
}

// As a merge sort does: it goes through short runs before it goes through long ones.
TEST(IndirectPrefetcher, CorrectsAStepThatFewFaultsTaught) {
  constexpr size_t kCount = 40'000;
  const Loop loop{.width = 8, .down = true, .step = 32};
  // Elements from one fault of the first phase to the next; beyond 128 they are another array's.
  for (const int64_t first_phase : {85, 2, 1, -3, -89, 700, -701}) {
    GatherModel model(static_cast<uint64_t>(first_phase + 1000));
    IndirectPrefetcher prefetcher;
    const std::vector<uint64_t> rows = makeIndex(model, loop, kCount, kIndexes);
    const auto touch = [&](size_t i) {
      FaultSample sample = model.noise(kCode);
      sample.registers[3] = kIndexes + i * loop.step;
      sample.address = loop.table + rows[i] * 400;
      model.use(sample.address);
      model.touch(prefetcher, sample);
    };
    for (int64_t n = 1; n <= 100; ++n) {
      touch(static_cast<size_t>(n * first_phase + 71 * int64_t{kCount}) % kCount);
    }
    for (size_t i = kCount; i-- > 0;) touch(i);
    SCOPED_TRACE(first_phase);
    expectForetold(model, prefetcher, 0.85);
  }
}

TEST(IndirectPrefetcher, FollowsSeveralTablesAndThreadsOfOneInstruction) {
  GatherModel model(3);
  IndirectPrefetcher prefetcher;
  for (int round = 0; round < 40; ++round) {
    for (uint64_t table = 0; table < 26; ++table) {
      const Loop loop{.width = 8,
                      .stride = 256,
                      .rows = 1'000'000,
                      .table = 0x10'0000'0040 + table * 256'000'000,
                      .thread = static_cast<int>(table % 4)};
      gather(model, prefetcher, loop, 128, kIndexes + table * 0x10000);
    }
    model.evictAll();
  }
  expectForetold(model, prefetcher, 0.75);
}

TEST(IndirectPrefetcher, ForetellsNothingOfRandomAddresses) {
  GatherModel model(11);
  IndirectPrefetcher prefetcher;
  std::array<uint64_t, IndexPlace::kStackWords> stack{};
  std::vector<uint64_t> heap(8192);
  for (int i = 0; i < 40'000; ++i) {
    for (uint64_t& word : heap) word = i % 64 == 0 ? model.random() : word;
    if (i % 64 == 0) model.put(kIndexes, heap.data(), heap.size() * 8);
    stack[model.random() % stack.size()] = kIndexes + model.random() % 60'000;
    model.put(GatherModel::kStack - IndexPlace::kRedZone, stack.data(), sizeof stack);
    FaultSample sample = model.noise(kCode + model.random() % 200);
    sample.registers[5] = kIndexes + model.random() % 60'000;
    sample.address = model.far_begin + model.random() % (model.far_end - model.far_begin);
    model.touch(prefetcher, sample);
  }
  EXPECT_LT(model.fetched, model.faults / 100);
}

/// Faults of instructions none of which is a gather loop, each of them a few.
void faultAllOver(GatherModel& model, IndirectPrefetcher& prefetcher, size_t count,
                  uint64_t first = 0, size_t codes = 500) {
  for (size_t i = 0; i < count; ++i) {
    FaultSample sample = model.noise(kCode + 1 + first + model.random() % codes);
    sample.address = model.far_begin + model.random() % (model.far_end - model.far_begin);
    model.touch(prefetcher, sample);
  }
}

// What learning costs, and that it is given up: most faults are not even looked at.
TEST(IndirectPrefetcher, LearnsInVainForASmallPartOfTheTime) {
  GatherModel model(13);
  IndirectPrefetcher prefetcher;
  faultAllOver(model, prefetcher, 100'000, 0, 1);
  EXPECT_LT(model.learned, 500u);
  EXPECT_LE(model.reads, model.learned * (1 + IndexPlace::kCount));
}

// Many instructions, none of which is a gather loop: together they cost no more.
TEST(IndirectPrefetcher, LearnsFromFewOfAllFaults) {
  GatherModel model(14);
  IndirectPrefetcher prefetcher;
  faultAllOver(model, prefetcher, 60'000, 0, 60);
  EXPECT_GT(model.learned, 200u);
  EXPECT_LE(model.learned, 128 + model.faults / 256);
}

// All lessons are spent: without more a loop would have to fault for long.
TEST(IndirectPrefetcher, LearnsAtOnceAfterAPause) {
  GatherModel model(21);
  IndirectPrefetcher prefetcher;
  faultAllOver(model, prefetcher, 20'000, 0, 60);
  prefetcher.resume();
  gather(model, prefetcher, {}, 1000);
  EXPECT_GT(model.fetched, 100u);
}

TEST(IndirectPrefetcher, LearnsWhatGathersAfterItFaultedAllOverForLong) {
  GatherModel model(12);
  IndirectPrefetcher prefetcher;
  faultAllOver(model, prefetcher, 1'500'000, 0, 1);
  EXPECT_EQ(prefetcher.stats().foretold, 0u);
  gather(model, prefetcher, {.stride = 4000, .rows = 4'000'000, .code = kCode + 1}, 150'000);
  EXPECT_GT(model.fetched, 30'000u);
}

TEST(IndirectPrefetcher, KeepsWhatItUnderstandsWhileOthersFaultAllOver) {
  GatherModel model(15);
  IndirectPrefetcher prefetcher;
  gather(model, prefetcher, {}, 20'000);
  faultAllOver(model, prefetcher, 20'000);
  const uint64_t fetched = model.fetched;
  gather(model, prefetcher, {}, 64);
  EXPECT_GT(model.fetched - fetched, 32u);
}

TEST(IndirectPrefetcher, ForgetsInTimeWhatDoesNotComeAgain) {
  GatherModel model(16);
  IndirectPrefetcher prefetcher;
  for (size_t i = 0; i < IndirectPrefetcher::kInstructions; ++i) {
    gather(model, prefetcher, {.code = kCode + i}, 500);
  }
  faultAllOver(model, prefetcher, 2 * IndirectPrefetcher::kUnderstood);
  model.fetched = model.faults = model.used = 0;
  gather(model, prefetcher, {.code = kCode + 10'000}, 40'000);
  EXPECT_GT(model.fetched, 2 * model.faults);
}

TEST(IndirectPrefetcher, LooksAgainWhereAShortArrayIsUsedAgain) {
  for (const bool down : {false, true}) {
    GatherModel model(19);
    IndirectPrefetcher prefetcher;
    for (int round = 0; round < 300; ++round) gather(model, prefetcher, {.down = down}, 100);
    SCOPED_TRACE(down);
    expectForetold(model, prefetcher, 0.5);
  }
}

// Others that come and go would have all lessons, each for a few faults.
TEST(IndirectPrefetcher, LearnsWhereItPaysThoughFewLessonsAreLeft) {
  GatherModel model(18);
  IndirectPrefetcher prefetcher;
  for (uint64_t round = 0; round < 400; ++round) {
    faultAllOver(model, prefetcher, 600, round * 30, 30);
    if (round >= 100) gather(model, prefetcher, {}, 100);
  }
  EXPECT_GT(model.fetched, 10'000u);
}

// Loops that end soon, on average after four elements: to look far ahead is wrong most of the time.
TEST(IndirectPrefetcher, LooksNoFurtherThanItIsRight) {
  GatherModel model(17);
  IndirectPrefetcher prefetcher;
  const Loop loop;
  const std::vector<uint64_t> rows = makeIndex(model, loop, 100'000, kIndexes);
  for (int i = 0; i < 20'000; ++i) {
    const size_t from = model.random() % 99'000;
    const size_t count = 1 + model.random() % 8;
    for (size_t at = from; at < from + count; ++at) {
      FaultSample sample = model.noise(kCode);
      sample.registers[3] = kIndexes + at * 4;
      sample.address = loop.table + rows[at] * 400;
      model.use(sample.address);
      model.touch(prefetcher, sample);
    }
    if (i % 1000 == 0) model.evictAll();
  }
  // Eight ahead at most, and not all the time.
  EXPECT_LT(model.fetched, model.faults * 4);
}

// Short arrays side by side, as the n-grams of words are: what lies behind an array's end is
// another's, and no part of the loop.
class ShortArrays {
 public:
  static constexpr uint64_t kVectors = 0x30'0000'0000;
  static constexpr uint64_t kLongest = 32;

  ShortArrays(GatherModel& model, IndirectPrefetcher& prefetcher)
      : model_(model), prefetcher_(prefetcher), rows_(makeIndex(model, loop_, 100'000, kIndexes)) {}

  enum class End : uint8_t { kInRegister, kBehindAPointer, kNowhere };
  void gatherAll(End end, int rounds) {
    for (int round = 0; round < rounds; ++round) {
      const size_t first = model_.random() % 3000 * kLongest;
      gatherOne(end, first, 4 + model_.random() % (kLongest - 4));
      if (round % 500 == 0) model_.evictAll();
    }
  }

 private:
  void gatherOne(End end, size_t first, size_t count) {
    // The vector of the array: begin, end.
    const std::array<uint64_t, 2> vector = {kIndexes + first * 4, kIndexes + (first + count) * 4};
    model_.put(kVectors + first * 16, vector.data(), sizeof vector);
    std::array<uint64_t, IndexPlace::kStackWords> stack{};
    if (end == End::kBehindAPointer) stack[20] = kVectors + first * 16;
    for (size_t at = first; at < first + count; ++at) {
      FaultSample sample = model_.noise(kCode);
      sample.registers[3] = kIndexes + at * 4;
      if (end == End::kInRegister) sample.registers[11] = vector[1];
      sample.address = loop_.table + rows_[at] * 400;
      model_.put(GatherModel::kStack - IndexPlace::kRedZone, stack.data(), sizeof stack);
      model_.use(sample.address);
      model_.touch(prefetcher_, sample);
    }
  }

  GatherModel& model_;
  IndirectPrefetcher& prefetcher_;
  const Loop loop_;
  const std::vector<uint64_t> rows_;
};

TEST(IndirectPrefetcher, EndsWhereTheArrayEnds) {
  for (const auto end : {ShortArrays::End::kInRegister, ShortArrays::End::kBehindAPointer}) {
    GatherModel model(31);
    IndirectPrefetcher prefetcher;
    ShortArrays(model, prefetcher).gatherAll(end, 4'000);
    EXPECT_GT(model.fetched, 3 * model.faults);
    EXPECT_GT(static_cast<double>(model.used), 0.95 * static_cast<double>(model.fetched));
  }
}

// What was taken for an end is forgotten once the loop has gone past it.
TEST(IndirectPrefetcher, ForgetsAnEndThatIsNone) {
  GatherModel model(37);
  IndirectPrefetcher prefetcher;
  ShortArrays(model, prefetcher).gatherAll(ShortArrays::End::kInRegister, 2'000);
  model.evictAll();
  const uint64_t fetched = model.fetched, faults = model.faults;
  gather(model, prefetcher, {}, 20'000);
  EXPECT_GT(model.fetched - fetched, 9 * (model.faults - faults));
}

// A loop whose other half touches so much that what was foretold has gone again before it is used.
TEST(IndirectPrefetcher, WhatIsUsedOnlyWhenItHasGoneIsNoSuccess) {
  for (const uint64_t local : {512, 1'000'000}) {
    GatherModel model(41);
    IndirectPrefetcher prefetcher;
    prefetcher.setLocal(PageCount(local));
    const Loop loop;
    const std::vector<uint64_t> rows = makeIndex(model, loop, 3'000, kIndexes);
    for (size_t at = 0; at < rows.size(); ++at) {
      FaultSample sample = model.noise(kCode);
      sample.registers[3] = kIndexes + at * 4;
      sample.address = loop.table + rows[at] * 400;
      model.use(sample.address);
      model.touch(prefetcher, sample);
      for (int other = 0; other < 60; ++other) {
        FaultSample elsewhere = model.noise(kCode + 1);
        elsewhere.address = model.far_begin + (uint64_t{1} << 33) + model.random() % (1 << 30);
        model.touch(prefetcher, elsewhere);
      }
      if (at % 100 == 0) model.evictAll();
    }
    EXPECT_EQ(model.fetched > rows.size() / 2, local > 512) << model.fetched;
  }
}

TEST(IndirectPrefetcher, RestsWhereLessThanHalfIsUsed) {
  GatherModel model(19);
  IndirectPrefetcher prefetcher;
  const Loop loop;
  const std::vector<uint64_t> rows = makeIndex(model, loop, 600'000, kIndexes);
  for (int i = 0; i < 60'000; ++i) {
    // One element each, near the last.
    const size_t at = static_cast<size_t>(i / 100) * 900 + model.random() % 900;
    FaultSample sample = model.noise(kCode);
    sample.registers[3] = kIndexes + at * 4;
    sample.address = loop.table + rows[at] * 400;
    model.use(sample.address);
    model.touch(prefetcher, sample);
    if (i % 100 == 0) model.evictAll();
  }
  EXPECT_GT(model.fetched, 0u);
  EXPECT_LT(model.fetched, model.faults / 2);
}

// Values at the ends of their ranges, arrays that end, addresses at the end of memory.
TEST(IndirectPrefetcher, TakesWhateverRegistersAndMemoryHold) {
  GatherModel model(23);
  IndirectPrefetcher prefetcher;
  const std::array<uint64_t, 9> extremes = {
      0,           1,    UINT64_MAX,    INT64_MAX, uint64_t{1} << 63, kAddressEnd - 1,
      kAddressEnd, 4096, UINT64_MAX - 7};
  std::vector<uint64_t> memory(64);
  for (int i = 0; i < 50'000; ++i) {
    for (uint64_t& word : memory) {
      word = model.random() % 2 == 0 ? extremes[model.random() % 9] : model.random() % 1000;
    }
    const uint64_t at = kAddressEnd - 512 * (1 + model.random() % 3);
    model.put(at, memory.data(), memory.size() * 8);
    FaultSample sample{.code = model.random() % 70, .thread = static_cast<int>(model.random() % 9)};
    sample.stack = model.random() % 2 == 0 ? at : extremes[model.random() % 9];
    for (uint64_t& each : sample.registers) {
      each = model.random() % 3 == 0 ? extremes[model.random() % 9] : at + model.random() % 600;
    }
    sample.address =
        model.random() % 4 == 0 ? extremes[model.random() % 9] : memory[model.random() % 64];
    prefetcher.onFault(sample, model);
    EXPECT_LE(prefetcher.foretold().size(), IndirectPrefetcher::kMostPages);
  }
}

// Indexes that grow without end: a stride is found, and the targets leave the address space.
TEST(IndirectPrefetcher, DropsTargetsThatAreNoAddresses) {
  GatherModel model(29);
  IndirectPrefetcher prefetcher;
  Loop loop{.width = 8, .stride = 65536, .rows = 200'000};
  std::vector<uint64_t> rows = makeIndex(model, loop, 4000, kIndexes);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % 2 == 1) rows[i] = i % 4 == 1 ? UINT64_MAX - i : INT64_MAX - i;
  }
  model.put(kIndexes, rows.data(), rows.size() * 8);
  for (size_t i = 0; i < rows.size(); i += 2) {
    FaultSample sample = model.noise(kCode);
    sample.registers[3] = kIndexes + i * 8;
    sample.address = loop.table + rows[i] * 65536;
    model.touch(prefetcher, sample);
    for (const uint64_t page : prefetcher.foretold()) {
      EXPECT_TRUE(page >= model.far_begin && page < model.far_end);
    }
  }
  EXPECT_GT(model.fetched, 0u);
}

}  // namespace
}  // namespace tidepool
