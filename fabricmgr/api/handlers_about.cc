// SPDX-License-Identifier: Apache-2.0
// The manager in general: status, health, metrics, the document.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "fabricmgr/api/call_tools.h"
#include "fabricmgr/api/openapi.h"

namespace tidepool::api {
namespace {

using fabric::RegionState;

uint64_t countOf(const fabric::Totals& totals, RegionState state) {
  return totals.regions_by_state[static_cast<size_t>(state)];
}

/// Collects what is wrong.
class Checks {
 public:
  void add(std::string_view code, std::string_view severity, uint64_t count,
           std::string_view text) {
    if (count == 0) return;
    out_.beginObject()
        .field("code", code)
        .field("severity", severity)
        .field("count", count)
        .field("text", text)
        .endObject();
    if (worst_ != "error") worst_ = severity;
  }
  Response response() {
    JsonWriter out;
    out.beginObject().field("health", worst_).beginList("checks").endList().endObject();
    std::string text = out.take();
    text.insert(text.size() - 2, out_.text());  // between the brackets
    return {200, "application/json", {}, text + "\n"};
  }

 private:
  JsonWriter out_;
  std::string_view worst_ = "ok";
};

uint64_t countOf(const std::vector<CertificateExpiry>& expiries, Left left, std::time_t now) {
  return static_cast<uint64_t>(
      std::count_if(expiries.begin(), expiries.end(),
                    [&](const CertificateExpiry& one) { return leftOf(one.end, now) == left; }));
}

uint64_t millisecondsTo(std::time_t end, std::time_t now) {
  return end <= now ? 0 : static_cast<uint64_t>(end - now) * 1000;
}

std::string dateText(std::time_t since_1970) {
  return timeText(Nanoseconds(static_cast<uint64_t>(since_1970) * kSecond));
}

/// `expiries` begin with what ends first.
void addExpiries(Checks* checks, const std::vector<CertificateExpiry>& expiries) {
  const std::time_t now = std::time(nullptr);
  const uint64_t over = countOf(expiries, Left::kNone, now);
  const auto text = [&](const CertificateExpiry& first) {
    return fmt::format(
        "certificates, or lists of revoked ones: {} {}; `fabricmgr certificate list` has all, "
        "`fabricmgr ca renew` replaces one",
        whatIs(first), endText(first.end, now));
  };
  if (over != 0) checks->add("CERTIFICATE_EXPIRED", "error", over, text(expiries.front()));
  const uint64_t soon = countOf(expiries, Left::kSoon, now);
  if (soon != 0) checks->add("CERTIFICATE_EXPIRES_SOON", "warning", soon, text(expiries[over]));
}

/// Less than a tenth of it is free.
uint64_t poolsNearlyFull(const fabric::Page<fabric::PoolInfo>& pools) {
  uint64_t count = 0;
  for (const fabric::PoolInfo& info : pools.items) {
    if (info.capacity.value() != 0 && info.free.value() < info.capacity.value() / 10) ++count;
  }
  return count;
}

}  // namespace

Outcome showStatus(const Call& call) {
  Service& service = call.service;
  const auto totals = service.manager().totals();
  if (!totals) return tl::unexpected(totals.error());
  JsonWriter out;
  out.beginObject()
      .field("version", service.version())
      .field("fabric", totals->fabric)
      .field("term", totals->term.value())
      .field("superseded_by", totals->superseded_by.value())
      .field("index", totals->index.value())
      .field("uptime_ms", service.uptime().value() / 1'000'000)
      .field("connections", service.connections())
      .field("watchers", service.hub().watchers())
      .field("pools", totals->pools)
      .field("devices", totals->devices);
  if (!totals->follows) out.field("unreachable_devices", totals->unreachable);
  out.field("hosts", totals->hosts)
      .field("regions", totals->regions)
      .field("operations", totals->operations)
      .field("capacity_bytes", totals->capacity.value())
      .field("free_bytes", totals->free.value());
  for (int state = 1; state < fabric::kRegionStates; ++state) {
    const auto as_state = static_cast<RegionState>(state);
    out.field(nameOf(as_state), countOf(*totals, as_state));
  }
  const std::time_t now = std::time(nullptr);
  const std::vector<CertificateExpiry> expiries = service.expiries().all(now);
  out.field("certificates", uint64_t{expiries.size()})
      .field("certificates_expired", countOf(expiries, Left::kNone, now))
      .field("next_expiry_of", expiries.empty() ? "" : whatIs(expiries.front()))
      .field("next_expiry_ms", expiries.empty() ? 0 : millisecondsTo(expiries.front().end, now));
  out.endObject();
  return Response{200, "application/json", {}, out.take() + "\n"};
}

Outcome showHealth(const Call& call) {
  const auto totals = call.service.manager().totals();
  if (!totals) return tl::unexpected(totals.error());
  const auto pools = call.service.manager().listPools({0, 10'000});
  if (!pools) return tl::unexpected(pools.error());
  Checks checks;
  checks.add(
      "FABRIC_SUPERSEDED", "error", totals->superseded_by == fabric::Term() ? 0 : 1,
      fmt::format("another manager of this fabric (term {}) is in charge, and this one changes "
                  "nothing any more: stop this one, or, if this store is the right one, run "
                  "`fabricmgr serve --take-over`",
                  totals->superseded_by.value()));
  const Status may_act = call.service.manager().mayAct();
  checks.add("STORE_AWAY", "error", may_act ? 0 : 1, may_act ? "" : may_act.error().text());
  checks.add("DEVICE_OF_ANOTHER_FABRIC", "error", totals->foreign,
             "devices belong to another fabric: `fabricmgr device show NAME` says to which one; "
             "remove them here, or there");
  checks.add(
      "DEVICE_UNREACHABLE", "error", totals->unreachable,
      "devices do not answer: `fabricmgr device list` has their names, `fabricmgr device show "
      "NAME` says why; nothing can be assigned on them or taken back");
  checks.add(
      "EXPIRY_HELD", "error", totals->hosts_held,
      "hosts' leases are over, but too many hosts are silent at once: nobody is cut off. See "
      "to this machine's network; `fabricmgr lease resume` gives them new leases, `fabricmgr "
      "lease expire` takes their memory");
  checks.add(
      "REGION_LOST", "error", countOf(*totals, RegionState::kLost),
      "regions have lost bytes: `fabricmgr region list --state lost`; what a memory server held "
      "is gone for good: `fabricmgr region release ID` gives back what is left of them");
  checks.add(
      "REGION_FENCED", "warning", countOf(*totals, RegionState::kFenced),
      "regions are cut off from their hosts and not erased yet: they wait their turn, or for a "
      "device; `fabricmgr operation list` says for what");
  checks.add(
      "HOST_FENCED", "warning", totals->hosts_fenced,
      "hosts are fenced and get nothing: `fabricmgr host list`; when all is well with one, "
      "`fabricmgr host resume NAME`; with all of a mass expiry, `fabricmgr host resume --all` "
      "or `-l SELECTOR`");
  checks.add("HOST_SILENT", "warning", totals->hosts_silent,
             "hosts' leases are over and they get nothing: `fabricmgr host list` has their names, "
             "`fabricmgr agent --status` on the host says why");
  checks.add("REGION_DIRTY", "warning", countOf(*totals, RegionState::kDirty),
             "regions wait to be erased: `fabricmgr operation list` says for what");
  checks.add("POOL_NEARLY_FULL", "warning", poolsNearlyFull(*pools),
             "pools have less than a tenth of their memory free: add devices, or release regions");
  addExpiries(&checks, call.service.expiries().all(std::time(nullptr)));
  checks.add("POOL_EMPTY", "warning", totals->devices == 0 ? 1 : 0,
             "there are no devices: `fabricmgr device add`");
  return checks.response();
}

Outcome whoAmI(const Call& call) {
  const Principal& principal = call.principal;
  JsonWriter out;
  out.beginObject()
      .field("role", nameOf(principal.role))
      .field("name", principal.name)
      .field("actor", principal.actor())
      .endObject();
  return Response{200, "application/json", {}, out.take() + "\n"};
}

Outcome showMetrics(const Call& call) {
  Service& service = call.service;
  const auto totals = service.manager().totals();
  if (!totals) return tl::unexpected(totals.error());
  return Response{200,
                  "text/plain; version=0.0.4",
                  {},
                  service.metrics().text({*totals, service.connections(), service.hub().watchers(),
                                          service.expiries().all(std::time(nullptr))})};
}

Outcome listCertificates(const Call& call) {
  const std::time_t now = std::time(nullptr);
  const std::vector<CertificateExpiry> all = call.service.expiries().all(now);
  const fabric::PageRequest page = pageOf(call);
  const uint64_t begin = std::min<uint64_t>(page.cursor, all.size());
  const uint64_t end = std::min<uint64_t>(begin + page.limit, all.size());
  JsonWriter out;
  out.beginObject().beginList("items");
  for (uint64_t i = begin; i < end; ++i) {
    out.beginObject()
        .field("kind", all[i].kind)
        .field("name", all[i].name)
        .field("until", dateText(all[i].end))
        .field("left_ms", millisecondsTo(all[i].end, now))
        .endObject();
  }
  out.endList()
      .field("next", end == all.size() ? uint64_t{0} : end)
      .field("index", call.service.manager().index().value())
      .endObject();
  return Response{200, "application/json", {}, out.take() + "\n"};
}

Outcome showDocument(const Call& call) {
  return Response{200, "application/json", {}, openApiDocument(call.service.version())};
}

}  // namespace tidepool::api
