// SPDX-License-Identifier: Apache-2.0
// The limit that row_fetch is held against: two processes that do nothing but move messages of the
// same sizes over loopback TCP, with the same number in flight; the bytes come out of a small
// buffer that stays in the cache. Also what both halves share. Single-threaded; times in
// nanoseconds.
#pragma once

#include <stdint.h>
#include <time.h>

#include <algorithm>
#include <vector>

namespace row_fetch {

inline uint64_t nowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(t.tv_nsec);
}

struct Shape {
  uint64_t row;  // bytes
  uint64_t batch;
  uint64_t in_flight;
};

struct Outcome {
  std::vector<uint64_t> times;  // of each request
  double seconds = 0;

  void add(uint64_t time) { times.push_back(time); }
  /// Nearest rank, in microseconds.
  double quantile(double q) {
    if (times.empty()) return 0;
    const auto rank = static_cast<size_t>(q * static_cast<double>(times.size() - 1) + 0.5);
    std::nth_element(times.begin(), times.begin() + static_cast<long>(rank), times.end());
    return static_cast<double>(times[rank]) / 1000;
  }
};

/// xorshift: a few cycles a number, so that drawing rows is no part of what is measured.
class Random {
 public:
  uint64_t below(uint64_t limit) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint64_t>((static_cast<unsigned __int128>(state_) * limit) >> 64);
  }

 private:
  uint64_t state_ = 0x2545f4914f6cdd1dull;
};

/// Small messages out, the rows back.
Outcome rawRead(const Shape& shape, double seconds);
/// The rows out, small messages back.
Outcome rawWrite(const Shape& shape, double seconds);

}  // namespace row_fetch
