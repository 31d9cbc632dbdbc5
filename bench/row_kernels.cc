// SPDX-License-Identifier: Apache-2.0
// row_kernels: the kernels over embedding rows by themselves, one thread. Bags of rows by type,
// dim, pooling, working set and page size; conversion; optimizer steps. Rows are picked uniformly
// at random. BIG_MIB (4096 unless set) is the working set that is far larger than any cache.
#include <benchmark/benchmark.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "allocator/kernels/kernels.h"

namespace {

using namespace tidepool;

constexpr size_t kBags = 2048;
constexpr size_t kRowsOfBag = 26;
/// Addresses are taken from a list far longer than a batch, so that no batch finds the rows of the
/// one before in the cache.
constexpr size_t kBatches = 64;

enum class Pages { kSmall, kHuge };

size_t bigMiB() {
  const char* const wanted = getenv("BIG_MIB");
  return wanted != nullptr ? strtoull(wanted, nullptr, 10) : 4096;
}

/// Memory for rows, every page of it written. Only the latest is kept: they are large.
class Memory {
 public:
  Memory(size_t size, Pages pages) : size_(size), pages_(pages) {
    void* const at =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) abort();
    madvise(at, size, pages == Pages::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    base_ = static_cast<std::byte*>(at);
    for (size_t i = 0; i < size; i += 4096) base_[i] = std::byte{1};
  }
  ~Memory() { munmap(base_, size_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  static Memory& of(size_t size, Pages pages) {
    static std::unique_ptr<Memory> latest;
    if (latest == nullptr || latest->size_ != size || latest->pages_ != pages) {
      latest.reset();
      latest = std::make_unique<Memory>(size, pages);
    }
    return *latest;
  }
  std::byte* base() { return base_; }

 private:
  size_t size_;
  Pages pages_;
  std::byte* base_;
};

struct Case {
  const Kernels* kernels;
  RowFormat format;
  size_t mib;
  Pages pages;
  Pooling pooling;
  bool weighted;
};

std::vector<const std::byte*> randomRows(const Case& c) {
  std::byte* const base = Memory::of(c.mib << 20, c.pages).base();
  std::mt19937_64 random(1);
  const uint64_t rows = (c.mib << 20) / c.format.stride();
  std::vector<const std::byte*> found(kBatches * kBags * kRowsOfBag);
  for (const std::byte*& row : found) row = base + random() % rows * c.format.stride();
  return found;
}

void pool(benchmark::State& state, const Case& c) {
  const std::vector<const std::byte*> rows = randomRows(c);
  const std::vector<float> weights(kBags * kRowsOfBag, 0.5f);
  std::vector<float> out(kBags * c.format.dim);
  std::vector<uint32_t> offsets;
  for (size_t b = 0; b <= kBags; ++b) offsets.push_back(static_cast<uint32_t>(b * kRowsOfBag));
  BagBatch batch{rows.data(), offsets.data(), kBags,       c.weighted ? weights.data() : nullptr,
                 c.pooling,   out.data(),     c.format.dim};
  size_t number = 0;
  for (auto _ : state) {
    batch.rows = rows.data() + number++ % kBatches * kBags * kRowsOfBag;
    c.kernels->bag(c.format, batch);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  const auto done = static_cast<int64_t>(state.iterations() * kBags * kRowsOfBag);
  state.SetItemsProcessed(done);
  state.SetBytesProcessed(done * c.format.weightBytes());
}

/// Rows that are in the first cache: what the arithmetic takes.
struct OneRow {
  explicit OneRow(const RowFormat& format) : row(format.stride()), floats(format.dim) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (float& x : floats) x = normal(random);
    kernels().encode(format, floats.data(), row.data());
  }
  std::vector<std::byte> row;
  std::vector<float> floats;
};

void decode(benchmark::State& state, const Case& c) {
  OneRow one(c.format);
  for (auto _ : state) {
    c.kernels->decode(c.format, one.row.data(), one.floats.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}

void encode(benchmark::State& state, const Case& c) {
  OneRow one(c.format);
  for (auto _ : state) {
    c.kernels->encode(c.format, one.floats.data(), one.row.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}

void accumulate(benchmark::State& state, const Case& c) {
  OneRow one(c.format);
  std::vector<float> sum(c.format.dim);
  for (auto _ : state) {
    c.kernels->accumulate(sum.data(), one.floats.data(), 1, c.format.dim);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}

void apply(benchmark::State& state, const Case& c) {
  OneRow one(c.format);
  OptimizerStep settings;
  settings.learning_rate = 1e-6f;
  const OptimizerStep step = prepared(settings);
  for (auto _ : state) {
    c.kernels->apply(c.format, step, one.floats.data(), one.row.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}

const char* const kTypeNames[] = {"float32", "float16", "bfloat16", "int8"};
const char* const kOptimizerNames[] = {"sgd", "momentum", "adagrad", "rowwise_adagrad", "adam"};

std::string nameOf(const Case& c) {
  return std::string(isaName(c.kernels->isa)) + "/" + kTypeNames[static_cast<int>(c.format.type)] +
         "/dim:" + std::to_string(c.format.dim);
}

void addBag(const Case& c) {
  const std::string name = "bag/" + nameOf(c) + (c.weighted ? "/weighted" : "") +
                           (c.pooling == Pooling::kMean ? "/mean" : "/sum") +
                           "/MiB:" + std::to_string(c.mib) +
                           (c.pages == Pages::kHuge ? "/huge" : "/small");
  benchmark::RegisterBenchmark(name.c_str(), pool, c)->UseRealTime();
}

void addRows(const Case& c) {
  benchmark::RegisterBenchmark(("decode/" + nameOf(c)).c_str(), decode, c);
  benchmark::RegisterBenchmark(("encode/" + nameOf(c)).c_str(), encode, c);
  for (unsigned o = 0; o < kOptimizers; ++o) {
    Case with = c;
    with.format.optimizer = static_cast<Optimizer>(o);
    const std::string name = std::string("apply/") + kOptimizerNames[o] + "/" + nameOf(c);
    benchmark::RegisterBenchmark(name.c_str(), apply, with);
  }
}

void addAll(const Kernels* one) {
  for (const size_t mib : {size_t{1}, size_t{16}, bigMiB()}) {
    for (const Pages pages : {Pages::kHuge, Pages::kSmall}) {
      for (unsigned type = 0; type < kElementTypes; ++type) {
        for (const uint32_t dim : {16u, 64u, 100u, 128u, 256u}) {
          const RowFormat format{static_cast<ElementType>(type), Optimizer::kSgd, dim};
          addBag({one, format, mib, pages, Pooling::kSum, false});
          if (dim != 64) continue;
          addBag({one, format, mib, pages, Pooling::kMean, false});
          addBag({one, format, mib, pages, Pooling::kSum, true});
        }
      }
    }
  }
  for (unsigned type = 0; type < kElementTypes; ++type) {
    for (const uint32_t dim : {64u, 100u, 256u}) {
      addRows({one,
               {static_cast<ElementType>(type), Optimizer::kSgd, dim},
               0,
               Pages::kSmall,
               Pooling::kSum,
               false});
    }
  }
  const Case c{one,  {ElementType::kFloat32, Optimizer::kSgd, 64}, 0, Pages::kSmall, Pooling::kSum,
               false};
  benchmark::RegisterBenchmark(("accumulate/" + nameOf(c)).c_str(), accumulate, c);
}

}  // namespace

int main(int argc, char** argv) {
  for (unsigned isa = 0; isa < kIsas; ++isa) {
    if (const Kernels* const one = kernelsFor(static_cast<Isa>(isa))) addAll(one);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
