// SPDX-License-Identifier: Apache-2.0
// The statistics page: counters of one process in a memfd named "tidepool-stats" that other
// processes map read-only. Fixed layout (kStatsSchema changes with it). Writers use relaxed
// atomics and never wait; readers see each counter exact, the whole not as one snapshot.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/base/result.h"
#include "runtime/base/server_role.h"
#include "runtime/base/units.h"

namespace tidepool {

inline constexpr uint64_t kStatsMagic = 0x31544154534c4454;  // "TDLSTAT1"
inline constexpr uint32_t kStatsSchema = 14;
inline constexpr const char* kStatsMemfdName = "tidepool-stats";
inline constexpr int kMaxTiers = 16;
inline constexpr int kMaxErrors = 16;
inline constexpr int kMaxSources = 6;
inline constexpr int kMaxTables = 128;

using StatCounter = std::atomic<uint64_t>;

/// Latencies in log-linear buckets: 4 to each power of two of nanoseconds, up to 2^40 ns.
struct LatencyHistogram {
  static constexpr int kBucketsPerOctave = 4;
  static constexpr int kBuckets = 41 * kBucketsPerOctave;
  StatCounter buckets[kBuckets];

  static int bucketOf(Nanoseconds latency);
  /// Lower edge of a bucket.
  static Nanoseconds edgeOf(int bucket);
  void record(Nanoseconds latency) {
    buckets[bucketOf(latency)].fetch_add(1, std::memory_order_relaxed);
  }
  /// Smallest edge below which `fraction` (0..1) of the records lie; 0 when there are none.
  Nanoseconds quantile(double fraction) const;
};

struct TierStats {
  char name[64];
  char kind[16];
  StatCounter capacity_bytes;
  StatCounter used_bytes;
  StatCounter reads_bytes;
  StatCounter writes_bytes;
  StatCounter emulated;  // 1 for an emulated device
  // Of a tier that pages reach in one way or another: a PageWays (page_ways.h), and why they
  // do not all go the better one. `noted` is written after the note, with release, once.
  StatCounter page_ways;
  StatCounter reconnections;  // of connections that broke
  StatCounter noted;
  char note[192];
  // Of a mirror: its memory servers, what each is to it (packServer()), and how much of the copy is
  // made that is being made.
  char servers[8][64];
  StatCounter server_states[8];
  StatCounter copied_pages, pages_to_copy;
  // Of each: reads of sealed pages that did not verify, and pages that were written there again.
  StatCounter unverified_reads[8], mended_pages[8];
};

/// What a memory server is to a mirror; `why` is of a loss.
constexpr uint64_t packServer(ServerRole role, ErrorCode why) {
  return static_cast<uint64_t>(role) | uint64_t{static_cast<uint8_t>(why)} << 8;
}

struct SampleStats {
  char source[24];  // "write-tracking", "unmap", "fault", "pebs", "ibs"
  StatCounter count;
  StatCounter cpu_nanoseconds;
};

/// What changes of an embedding table: its place in TableStats::counts.
enum class TableCount : uint8_t { kLookups, kHits, kDramBytes, kDramBudgetBytes };
inline constexpr size_t kTableCounts = 4;

/// An embedding table of the process; see table_stats.h.
struct TableStats {
  StatCounter taken;    // 1: somebody's
  StatCounter version;  // even but 0: what stands here is a table; odd: it was one, or will be
  char name[64];
  char tier[64];
  StatCounter rows;
  StatCounter row_bytes;  // with the optimizer's state
  StatCounter counts[kTableCounts];
};

struct StatsPage {
  StatCounter magic;  // written last, with release
  uint32_t schema;
  uint32_t pid;
  char program[64];
  char mode[32];                    // "managed", or "degraded"
  StatCounter started_nanoseconds;  // CLOCK_MONOTONIC at start

  StatCounter dram_budget_bytes;
  StatCounter dram_share_bytes;  // of the budget, what this process may use beside its relatives
  StatCounter dram_used_bytes;   // anonymous local memory of the process, as the kernel counts it
  StatCounter managed_bytes;     // handed out of the managed space now
  StatCounter managed_local_bytes;
  StatCounter unmanaged_bytes;  // anonymous memory outside the managed space
  StatCounter metadata_bytes;
  StatCounter promotions, promoted_bytes;
  StatCounter promotions_held_by_pins;  // pages, each time: a descriptor may pin pages
  StatCounter demotions, demoted_bytes;
  // Pages of direct tiers' granules that looks found in use, by where they were: see JSON's keys.
  StatCounter sampled_local_pages, sampled_far_pages;
  StatCounter strayed_pages;      // local pages found on a numa: tier's node
  StatCounter returned_pages;     // and moved back
  StatCounter wasted_migrations;  // promoted then demoted without use, or demoted and back at once
  StatCounter faults_missing, faults_write_protect;
  StatCounter clean_evictions;  // shadow still good: nothing was written back
  StatCounter zero_pages;       // all zeros when they left: nothing was written, or is kept
  StatCounter rescues;          // pages taken back while on their way out
  StatCounter prefetched_pages, prefetch_hits;
  StatCounter foretold_pages, foretold_used;       // the latter by a sample of pages left out
  StatCounter compressed_pages, compressed_bytes;  // in the compressed pool, and what they take
  StatCounter compressed_hits;                     // pages brought in from there
  StatCounter compressed_written_back;             // pages that left it for far memory
  StatCounter lost_pages;
  StatCounter direct_suspensions;  // ends of the host's lease: see DirectLease
  StatCounter direct_suspended;    // 1: memory of the fabric is out of reach
  StatCounter service_cpu_nanoseconds;
  StatCounter sampling_cpu_nanoseconds;
  StatCounter moving_cpu_nanoseconds;  // to and from direct tiers, by the balancer's choice
  // Faults that so much more local memory would have saved: a step, and one more (DramSplit), each
  // without the step before; and what all of these took.
  StatCounter faults_a_step_short, faults_two_steps_short;
  StatCounter faults_short_nanoseconds;
  StatCounter faults_part_short_nanoseconds;  // that a part of a step saves (TreeShare)
  StatCounter rows_short_nanoseconds;         // that a step more would have saved tables
  LatencyHistogram fault_latency;

  StatCounter tier_count;
  TierStats tiers[kMaxTiers];
  StatCounter source_count;
  SampleStats sources[kMaxSources];
  TableStats tables[kMaxTables];
  StatCounter more_tables;  // that found no place there
  StatCounter error_count;  // may exceed kMaxErrors: the ring keeps the newest
  char errors[kMaxErrors][256];
};

}  // namespace tidepool
