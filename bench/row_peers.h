// SPDX-License-Identifier: Apache-2.0
// Known policies to hold the row policy against, at the same trace and number of slots. Each
// returns, for every lookup, whether it was a hit. Memory is no object for them. Single-thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/row_trace.h"

namespace tidepool::bench {

/// One byte a lookup: 1 is a hit.
using Hits = std::vector<uint8_t>;

/// lru        every miss comes in
/// lfu        counts of all rows, resident or not, since the trace's begin; a row comes in when it
///            has been used more often than the least used resident (the longest unused of them)
/// lfu-cache  counts since the row came in; every miss comes in
/// s3fifo     Yang et al., SOSP 2023: small queue of 10 %, ghosts for as many rows as the main
/// queue
///            has slots; every miss comes in
/// static     the rows used most in the measured part, resident throughout
/// belady     the furthest next use goes, or does not come in if it is the new row's own (misses
///            can be read in place)
const std::vector<std::string>& rowPeerNames();

/// Empty for a name that is not one of them.
Hits runRowPeer(std::string_view name, const RowTrace& trace, uint32_t slots);

/// What WindowedBelady knows of how often rows are used.
enum class Uses : uint8_t {
  kExpected,  // all: skew and rotating tell it (RowTrace::frequency, as it is at each moment), of
              // others it has the counts of the measured part
  kCounted,   // what it has seen from the trace's begin on, in announced batches, too
};
struct Sight {
  size_t batch;    // lookups
  size_t batches;  // that it sees beyond the one underway
  Uses uses = Uses::kExpected;
};

/// Belady that sees the batch underway and some after it, lookup by lookup; among rows not used
/// within sight the rarest goes, and of these the longest unused. With expected uses, where draws
/// are independent, no policy with that lookahead can be expected to do better.
Hits runWindowedBelady(const RowTrace& trace, uint32_t slots, const Sight& sight);

/// Share of hits in the measured part.
double hitRate(const RowTrace& trace, const Hits& hits);

}  // namespace tidepool::bench
