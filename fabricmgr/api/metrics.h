// SPDX-License-Identifier: Apache-2.0
// What the API counts of itself, and its text for Prometheus. Thread-safe: counters are relaxed
// atomics, summed on read.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fabricmgr/api/routes.h"
#include "fabricmgr/expiry.h"
#include "fabricmgr/manager/views.h"

namespace tidepool::api {

/// Why somebody was turned away. Bounded: these become labels.
enum class Turned : uint8_t { kHandshake, kRole, kMalformed, kTooMuch, kTooSlow };
inline constexpr size_t kTurnedKinds = 5;

class Metrics {
 public:
  Metrics();
  void served(const Route& route, int status, Nanoseconds took);
  void turnedAway(Turned why) { add(turned_[static_cast<size_t>(why)], 1); }

  struct Gauges {
    fabric::Totals totals;
    uint64_t connections = 0;
    uint64_t watchers = 0;
    std::vector<CertificateExpiry> expiries;
  };
  std::string text(const Gauges& gauges) const;

 private:
  void requests(std::string* out) const;

  struct Counts {
    std::array<std::atomic<uint64_t>, 4> by_class{};  // 2xx, 3xx, 4xx, 5xx
    std::atomic<uint64_t> nanoseconds{0};
  };
  static void add(std::atomic<uint64_t>& counter, uint64_t amount) {
    counter.fetch_add(amount, std::memory_order_relaxed);
  }

  std::unique_ptr<Counts[]> counts_;  // one for each route
  std::array<std::atomic<uint64_t>, kTurnedKinds> turned_{};
};

}  // namespace tidepool::api
