// SPDX-License-Identifier: Apache-2.0
// Metrics in Prometheus' text format 0.0.4.
#include "fabricmgr/api/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace tidepool::api {
namespace {

constexpr std::string_view kTurnedNames[kTurnedKinds] = {"handshake", "role", "malformed",
                                                         "too_much", "too_slow"};
constexpr std::string_view kClassNames[] = {"2xx", "3xx", "4xx", "5xx"};

/// One family: its help and type, then its samples.
class Family {
 public:
  Family(std::string* out, std::string_view name, std::string_view type, std::string_view help)
      : out_(out), name_(name) {
    *out_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  void sample(std::string_view labels, auto value) {
    *out_ += labels.empty() ? fmt::format("{} {}\n", name_, value)
                            : fmt::format("{}{{{}}} {}\n", name_, labels, value);
  }

 private:
  std::string* out_;
  std::string_view name_;
};

void gauge(std::string* out, std::string_view name, std::string_view help, uint64_t value) {
  Family(out, name, "gauge", help).sample("", value);
}

void certificates(std::string* out, const std::vector<CertificateExpiry>& expiries) {
  Family family(out, "tidepool_fabric_certificate_left_seconds", "gauge",
                "Time until certificates and lists of revoked ones end; below 0: since.");
  const auto now = static_cast<int64_t>(std::time(nullptr));
  for (const CertificateExpiry& one : expiries) {
    family.sample(fmt::format("kind=\"{}\",name=\"{}\"", one.kind, one.name),
                  static_cast<int64_t>(one.end) - now);
  }
}

void knownToWhoLeads(std::string* out, const fabric::Totals& totals) {
  gauge(out, "tidepool_fabric_devices_unreachable", "Devices that do not answer.",
        totals.unreachable);
  gauge(out, "tidepool_fabric_hosts_silent", "Hosts whose lease is over, and that are not fenced.",
        totals.hosts_silent);
  gauge(out, "tidepool_fabric_hosts_held", "Hosts whose lease is over, but whose expiry is held.",
        totals.hosts_held);
  Family(out, "tidepool_fabric_leases_expired_total", "counter",
         "Leases that ran out, so that their hosts were fenced.")
      .sample("", totals.leases_expired);
}

void regions(std::string* out, const fabric::Totals& totals) {
  Family family(out, "tidepool_fabric_regions", "gauge", "Regions, by state.");
  for (int state = 1; state < fabric::kRegionStates; ++state) {
    family.sample(fmt::format("state=\"{}\"", nameOf(static_cast<fabric::RegionState>(state))),
                  totals.regions_by_state[static_cast<size_t>(state)]);
  }
}

}  // namespace

Metrics::Metrics() : counts_(std::make_unique<Counts[]>(routes().size())) {}

void Metrics::served(const Route& route, int status, Nanoseconds took) {
  Counts& counts = counts_[static_cast<size_t>(&route - routes().data())];
  add(counts.by_class[static_cast<size_t>(std::clamp(status / 100, 2, 5) - 2)], 1);
  add(counts.nanoseconds, took.value());
}

std::string Metrics::text(const Gauges& gauges) const {
  const fabric::Totals& totals = gauges.totals;
  std::string out;
  gauge(&out, "tidepool_fabric_index", "Index of the last durable change.", totals.index.value());
  gauge(&out, "tidepool_fabric_pools", "Pools.", totals.pools);
  gauge(&out, "tidepool_fabric_devices", "Devices.", totals.devices);
  gauge(&out, "tidepool_fabric_hosts", "Hosts.", totals.hosts);
  gauge(&out, "tidepool_fabric_hosts_fenced", "Hosts that are cut off.", totals.hosts_fenced);
  if (!totals.follows) knownToWhoLeads(&out, totals);
  gauge(&out, "tidepool_fabric_operations_running", "Operations under way.", totals.operations);
  gauge(&out, "tidepool_fabric_capacity_bytes", "Memory of all devices.", totals.capacity.value());
  gauge(&out, "tidepool_fabric_free_bytes", "Memory that no region holds.", totals.free.value());
  gauge(&out, "tidepool_fabric_connections", "Open connections.", gauges.connections);
  gauge(&out, "tidepool_fabric_watchers", "Requests that wait for events.", gauges.watchers);
  certificates(&out, gauges.expiries);
  regions(&out, totals);
  requests(&out);
  return out;
}

void Metrics::requests(std::string* out) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  Family turned(out, "tidepool_fabric_turned_away_total", "counter",
                "Requests and connections that were refused before any handler, by reason.");
  for (size_t i = 0; i < kTurnedKinds; ++i) {
    turned.sample(fmt::format("reason=\"{}\"", kTurnedNames[i]), turned_[i].load(kRelaxed));
  }
  Family served(out, "tidepool_fabric_requests_total", "counter",
                "Requests that were served, by operation and class of status.");
  for (size_t i = 0; i < routes().size(); ++i) {
    for (size_t kind = 0; kind < 4; ++kind) {
      const uint64_t count = counts_[i].by_class[kind].load(kRelaxed);
      if (count == 0) continue;
      served.sample(
          fmt::format("operation=\"{}\",status=\"{}\"", routes()[i].name, kClassNames[kind]),
          count);
    }
  }
  Family seconds(out, "tidepool_fabric_request_seconds_total", "counter",
                 "Time spent on serving requests, by operation.");
  for (size_t i = 0; i < routes().size(); ++i) {
    const uint64_t spent = counts_[i].nanoseconds.load(kRelaxed);
    if (spent == 0) continue;
    seconds.sample(fmt::format("operation=\"{}\"", routes()[i].name),
                   static_cast<double>(spent) / 1e9);
  }
}

}  // namespace tidepool::api
