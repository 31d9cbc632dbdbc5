// SPDX-License-Identifier: Apache-2.0
// Classic policies to compare with, as plain demand paging that sees every access (which no engine
// can). Single-thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bench/policy_engine.h"
#include "bench/policy_trace.h"

namespace tidepool::bench {

/// "opt" (Belady, clairvoyant), "lru", "clock", "s3fifo", "lrfu" (decayed frequency) or "static"
/// (knows how often each page will be used, evicts the least used). Null for another name.
/// The trace outlives the model.
std::unique_ptr<Model> makePeer(const std::string& name, const Trace& trace, uint32_t capacity);

}  // namespace tidepool::bench
