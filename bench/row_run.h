// SPDX-License-Identifier: Apache-2.0
// Runs the production row policy over a trace, with or without a known future. Single-thread.
#pragma once

#include "bench/row_engine.h"
#include "bench/row_peers.h"
#include "bench/row_trace.h"

namespace tidepool::bench {

struct RowRun {
  uint32_t slots = 0;
  size_t batch = 1;      // lookups
  size_t lookahead = 0;  // batches known beyond the one underway
  FarTier tier = FarTier::kDirect;
  uint64_t seed = 1;
};

struct RowRunResult {
  Hits hits;
  RowPolicyStats stats;
  Bytes metadata;          // slots and sketch
  Bytes future_metadata;   // what knowing the future takes
  uint64_t overflows = 0;  // rows that found every slot needed by the batch underway
};

RowRunResult runRowPolicy(const RowTrace& trace, const RowRun& run);

}  // namespace tidepool::bench
