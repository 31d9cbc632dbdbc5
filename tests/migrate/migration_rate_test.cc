// SPDX-License-Identifier: Apache-2.0
// migration_rate bounds what the balancer moves, and does not keep it from moving.
#include "runtime/base/clock.h"
#include "tests/migrate/fixture.h"

namespace tidepool {
namespace {

constexpr uint64_t kRate = kMiB;

TEST(MigrationRate, BoundsBackgroundMoves) {
  Options options;
  options.dram = Bytes(16 * kMiB);
  options.budget_scope = BudgetScope::kManaged;
  options.space = Bytes(64 * kGiB);
  options.sampling_cpu = 1;  // soon knows what is hot
  options.migration_rate = static_cast<double>(kRate);
  options.far_count = 1;
  options.far[0] = {.kind = farKind("cxl"), .size = Bytes(128 * kMiB)};
  const MonotonicClock clock;
  const Nanoseconds start = clock.now();
  auto runtime = Runtime::start(options);
  ASSERT_TRUE(runtime) << runtime.error().text();
  auto memory = (*runtime)->allocate(Bytes(64 * kMiB), Bytes(kGranuleSize));
  ASSERT_TRUE(memory);
  volatile char* bytes = static_cast<volatile char*>(*memory);
  for (uint64_t at = 0; at < 64 * kMiB; at += kPageSize) bytes[at] = 1;
  const StatsPage& stats = (*runtime)->stats();
  const auto moved = [&] { return stats.promoted_bytes.load() + stats.demoted_bytes.load(); };
  // First touches place granules whatever the rate; from here on only the balancer moves.
  const uint64_t placed = moved();
  // One page in five is hot, most of them far.
  while (moved() - placed < 4 * kMiB) {
    for (uint64_t at = 0; at < 64 * kMiB; at += 5 * kPageSize) bytes[at] = bytes[at] + 1;
  }
  const double seconds = static_cast<double>((clock.now() - start).value()) * 1e-9;
  // A quarter of a second may be saved up, and the last move may overdraw by a granule.
  EXPECT_LE(static_cast<double>(moved() - placed),
            static_cast<double>(kRate) * (seconds + 0.25) + static_cast<double>(kGranuleSize));
}

}  // namespace
}  // namespace tidepool
