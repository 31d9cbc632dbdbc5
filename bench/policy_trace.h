// SPDX-License-Identifier: Apache-2.0
// Page traces for the policy simulator, made from text or from a seed. Plain values, single-thread.
// Units: pages of 4 KiB, nanoseconds of compute between accesses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tidepool::bench {

inline constexpr uint32_t kWriteBit = 1u << 31;

struct TracePhase {
  std::string name;
  size_t begin = 0;      // first access
  double ns_per_access;  // compute time when nothing faults
};

/// A part of the footprint, to tell whose faults they are; it ends where the next begins.
struct TraceRegion {
  std::string name;
  uint64_t first_page = 0;
};

struct Trace {
  std::string name;
  uint32_t pages = 0;                // footprint
  std::vector<uint32_t> accesses{};  // page number, kWriteBit for a store
  std::vector<TracePhase> phases{};
  std::vector<TraceRegion> regions{};
  size_t measured = 0;  // index into phases: the one whose faults are compared

  void phase(const char* phase_name, double ns_per_access) {
    phases.push_back({phase_name, accesses.size(), ns_per_access});
  }
  void read(uint64_t page) { accesses.push_back(static_cast<uint32_t>(page)); }
  void write(uint64_t page) { accesses.push_back(static_cast<uint32_t>(page) | kWriteBit); }
};

/// What fasttext 0.9.2 `skipgram -dim 100 -bucket 2000000 -epoch 1 -thread 1` touches, training on
/// `text`: hash table and entries of the dictionary, input rows (words and hashed subwords), output
/// rows, table of negatives.
Trace fasttextTrace(const std::string& text);
/// DLRM-like: 8 tables of 256-byte rows, ids Zipf 1.05 hashed over the rows, batches; rows read
/// then written.
Trace embeddingTrace(uint64_t seed);
/// The same, rows only read.
Trace inferenceTrace(uint64_t seed);
/// 90 % of updates to a random 10 % of the pages, which changes half-way.
Trace gupsTrace(uint64_t seed);
/// One range larger than memory, read from end to end again and again.
Trace scanTrace();
/// The same from its end to its begin, beside a table that is read at random.
Trace descentTrace(uint64_t seed);
/// The last levels of a merge sort as sort(1) has it: arrays of lines that are filled from their
/// end downwards, and at each step the text of a line, which lies anywhere in its run.
Trace mergeSortTrace(uint64_t seed);
/// A hot set that fits, and a scan passing by.
Trace scanAndHotTrace(uint64_t seed);

}  // namespace tidepool::bench
