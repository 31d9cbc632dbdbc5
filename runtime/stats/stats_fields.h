// SPDX-License-Identifier: Apache-2.0
// What a statistics page tells, once for all renderings: the table of its numbers, and safe ways
// through its arrays, whose counts are the writer's word. Every counter is read relaxed: each is
// exact, the whole is not one snapshot. Thread-safe, no allocation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "runtime/base/page_ways.h"
#include "runtime/base/result.h"
#include "runtime/base/text_buffer.h"
#include "runtime/stats/stats_region.h"

namespace tidepool {

inline uint64_t readCounter(const StatCounter& counter) {
  return counter.load(std::memory_order_relaxed);
}

/// What a number counts; both times are held in nanoseconds.
enum class StatUnit : uint8_t { kCount, kBytes, kSeconds, kMicroseconds };
/// Numbers that stand together.
enum class StatGroup : uint8_t { kMemory, kMoves, kFaults, kCpu };

struct StatField {
  std::string_view key;  // in JSON; stable
  StatGroup group;
  StatUnit unit;
  uint64_t (*read)(const StatsPage& page);
};

namespace stat_fields {

using enum StatGroup;
using enum StatUnit;

template <StatCounter StatsPage::*kCounter>
constexpr StatField counter(std::string_view key, StatGroup group, StatUnit unit) {
  return {key, group, unit, [](const StatsPage& page) { return readCounter(page.*kCounter); }};
}
template <int kPercent>
constexpr StatField faultLatency(std::string_view key) {
  return {key, kFaults, kMicroseconds, [](const StatsPage& page) {
            return page.fault_latency.quantile(kPercent / 100.0).value();
          }};
}

inline constexpr StatField kAll[] = {
    counter<&StatsPage::dram_budget_bytes>("dram_budget_bytes", kMemory, kBytes),
    counter<&StatsPage::dram_share_bytes>("dram_share_bytes", kMemory, kBytes),
    counter<&StatsPage::dram_used_bytes>("dram_used_bytes", kMemory, kBytes),
    counter<&StatsPage::managed_bytes>("managed_bytes", kMemory, kBytes),
    counter<&StatsPage::managed_local_bytes>("managed_local_bytes", kMemory, kBytes),
    counter<&StatsPage::unmanaged_bytes>("unmanaged_bytes", kMemory, kBytes),
    counter<&StatsPage::metadata_bytes>("metadata_bytes", kMemory, kBytes),
    counter<&StatsPage::promotions>("promotions", kMoves, kCount),
    counter<&StatsPage::promoted_bytes>("promoted_bytes", kMoves, kBytes),
    counter<&StatsPage::promotions_held_by_pins>("promotions_held_by_pins", kMoves, kCount),
    counter<&StatsPage::demotions>("demotions", kMoves, kCount),
    counter<&StatsPage::demoted_bytes>("demoted_bytes", kMoves, kBytes),
    counter<&StatsPage::sampled_local_pages>("sampled_local_pages", kMoves, kCount),
    counter<&StatsPage::sampled_far_pages>("sampled_far_pages", kMoves, kCount),
    counter<&StatsPage::strayed_pages>("strayed_pages", kMoves, kCount),
    counter<&StatsPage::returned_pages>("returned_pages", kMoves, kCount),
    counter<&StatsPage::wasted_migrations>("wasted_migrations", kMoves, kCount),
    counter<&StatsPage::clean_evictions>("clean_evictions", kMoves, kCount),
    counter<&StatsPage::zero_pages>("zero_pages", kMoves, kCount),
    counter<&StatsPage::rescues>("rescues", kMoves, kCount),
    counter<&StatsPage::prefetched_pages>("prefetched_pages", kMoves, kCount),
    counter<&StatsPage::prefetch_hits>("prefetch_hits", kMoves, kCount),
    counter<&StatsPage::foretold_pages>("foretold_pages", kMoves, kCount),
    counter<&StatsPage::foretold_used>("foretold_used", kMoves, kCount),
    counter<&StatsPage::compressed_pages>("compressed_pages", kMoves, kCount),
    counter<&StatsPage::compressed_bytes>("compressed_bytes", kMoves, kBytes),
    counter<&StatsPage::compressed_hits>("compressed_hits", kMoves, kCount),
    counter<&StatsPage::compressed_written_back>("compressed_written_back", kMoves, kCount),
    counter<&StatsPage::lost_pages>("lost_pages", kMoves, kCount),
    counter<&StatsPage::direct_suspensions>("direct_suspensions", kMoves, kCount),
    counter<&StatsPage::direct_suspended>("direct_suspended", kMoves, kCount),
    counter<&StatsPage::faults_missing>("missing", kFaults, kCount),
    counter<&StatsPage::faults_write_protect>("write_protect", kFaults, kCount),
    faultLatency<50>("p50_us"),
    faultLatency<99>("p99_us"),
    counter<&StatsPage::sampling_cpu_nanoseconds>("sampling_cpu_seconds", kCpu, kSeconds),
    counter<&StatsPage::moving_cpu_nanoseconds>("moving_cpu_seconds", kCpu, kSeconds),
    counter<&StatsPage::service_cpu_nanoseconds>("service_cpu_seconds", kCpu, kSeconds),
};

}  // namespace stat_fields

/// In the order of JSON.
inline constexpr std::span<const StatField> kStatFields = stat_fields::kAll;

/// Index of the field of that key; kStatFields.size() if there is none.
constexpr size_t statFieldAt(std::string_view key) {
  size_t at = 0;
  while (at < kStatFields.size() && kStatFields[at].key != key) ++at;
  return at;
}

struct TierField {
  std::string_view key;
  std::string_view heading;
  StatCounter TierStats::*counter;
};
inline constexpr TierField kTierFields[] = {
    {"used_bytes", "used", &TierStats::used_bytes},
    {"capacity_bytes", "capacity", &TierStats::capacity_bytes},
    {"reads_bytes", "read", &TierStats::reads_bytes},
    {"writes_bytes", "written", &TierStats::writes_bytes},
};

/// Why not all pages of a tier go by RDMA; empty if there is nothing to say.
inline std::string_view noteOf(const TierStats& tier) {
  // Acquire: pairs with the release of whoever wrote the note.
  if (tier.noted.load(std::memory_order_acquire) == 0) return {};
  return {tier.note, strnlen(tier.note, sizeof tier.note)};
}

/// A memory server of a mirror.
struct ServerView {
  std::string_view name;
  ServerRole role = ServerRole::kLive;
  std::string_view why{};                   // kLost
  uint64_t copied_pages = 0, of_pages = 0;  // kFilling
  uint64_t unverified_reads = 0, mended_pages = 0;
};

/// A line for people.
void appendServer(TextBuffer& out, const ServerView& server);

/// Calls `say(view)` for each memory server of a mirror.
template <typename Say>
void forServers(const TierStats& tier, Say say) {
  for (size_t i = 0; i < std::size(tier.servers); ++i) {
    const uint64_t state = readCounter(tier.server_states[i]);
    ServerView view{.name = {tier.servers[i], strnlen(tier.servers[i], sizeof tier.servers[i])},
                    .role = static_cast<ServerRole>(state & 3),
                    .unverified_reads = readCounter(tier.unverified_reads[i]),
                    .mended_pages = readCounter(tier.mended_pages[i])};
    if (view.name.empty()) continue;
    if (view.role == ServerRole::kLost)
      view.why = errorCodeName(static_cast<ErrorCode>(state >> 8));
    if (view.role == ServerRole::kFilling) {
      view.copied_pages = readCounter(tier.copied_pages);
      view.of_pages = readCounter(tier.pages_to_copy);
    }
    say(view);
  }
}

inline std::span<const TierStats> tiersOf(const StatsPage& page) {
  // Acquire: pairs with the store in describeFarTiers().
  const uint64_t count = page.tier_count.load(std::memory_order_acquire);
  return {page.tiers, std::min<uint64_t>(count, kMaxTiers)};
}

inline std::span<const SampleStats> sourcesOf(const StatsPage& page) {
  // Acquire: pairs with the release in addStatsSource().
  const uint64_t count = page.source_count.load(std::memory_order_acquire);
  return {page.sources, std::min<uint64_t>(count, kMaxSources)};
}

/// Calls `say(line)` for the errors still in the ring, oldest first.
template <typename Say>
void forErrors(const StatsPage& page, Say say) {
  const uint64_t count = readCounter(page.error_count);
  for (uint64_t i = count - std::min<uint64_t>(count, kMaxErrors); i != count; ++i) {
    char line[256];
    readStatsError(page, static_cast<int>(i % kMaxErrors), line);
    say(std::string_view(line));
  }
}

/// Seconds from the process's start to `now`, and the share of them that sampling took.
struct StatSpan {
  double elapsed = 0;
  double sampling_ratio = 0;
};
inline StatSpan spanOf(const StatsPage& page, Nanoseconds now) {
  const uint64_t started = readCounter(page.started_nanoseconds);
  if (now.value() <= started) return {};
  const double elapsed = static_cast<double>(now.value() - started) * 1e-9;
  return {elapsed,
          static_cast<double>(readCounter(page.sampling_cpu_nanoseconds)) * 1e-9 / elapsed};
}

}  // namespace tidepool
