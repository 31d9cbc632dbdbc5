// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/api/standby.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include "fabricmgr/api/call_tools.h"
#include "fabricmgr/api/problem.h"
#include "fabricmgr/api/service.h"
#include "runtime/base/clock.h"

namespace tidepool::api {
namespace {

constexpr const char* kIndexHeader = "tidepool-index";
/// For so long an index that is asked for is waited for.
constexpr Nanoseconds kIndexWait(3 * kSecond);
constexpr int kLookMilliseconds = 5;

/// Who acts on what it reads, as agents do, needs what only the manager that leads knows; so does
/// health. And load balancers, which ask for that, are to send nobody here.
bool isForStandby(const Exchange& exchange) {
  const Request& request = exchange.request;
  const std::string* control = request.header("cache-control");
  return request.method == "GET" && request.path != "/v1/health" &&
         exchange.principal.role != Role::kHost && request.header("tidepool-host") == nullptr &&
         (control == nullptr || control->find("no-cache") == std::string::npos);
}

/// What the client has seen already, here or elsewhere. Errors: kInvalidArgument.
Result<fabric::Index> seenBy(const Request& request) {
  const std::string* const index = request.header(kIndexHeader);
  uint64_t most = 0;
  if (index != nullptr && !parseNumber(*index, &most)) {
    return fail(ErrorCode::kInvalidArgument, "Tidepool-Index has to be an index, such as 42");
  }
  if (request.path != "/v1/events") return fabric::Index(most);
  // A client that goes on from there has seen it; what is no number is refused by the route.
  for (const std::string* other : {request.parameter("since"), request.header("last-event-id")}) {
    uint64_t number = 0;
    if (other != nullptr && parseNumber(*other, &number)) most = std::max(most, number);
  }
  return fabric::Index(most);
}

/// Waits until that is shown. Errors: kInvalidArgument; kTimedOut.
Status awaitSeen(fabric::Manager& manager, const Request& request) {
  const auto seen = seenBy(request);
  if (!seen) return tl::unexpected(seen.error());
  const Nanoseconds until = kMonotonicClock.now() + kIndexWait;
  while (manager.index() < *seen) {
    if (kMonotonicClock.now() >= until) {
      return fail(ErrorCode::kTimedOut, "it has read the store up to index %llu, and not yet %llu",
                  static_cast<unsigned long long>(manager.index().value()),
                  static_cast<unsigned long long>(seen->value()));
    }
    poll(nullptr, 0, kLookMilliseconds);
  }
  return {};
}

std::string encoded(std::string_view text, std::string_view plain) {
  std::string out;
  for (const char c : text) {
    const bool as_it_is = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                          (c >= 'A' && c <= 'Z') || plain.find(c) != std::string_view::npos;
    out += as_it_is ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

/// The same request, of the manager whose address that is.
std::string locationOf(const std::string& address, const Request& request) {
  std::string location = address + encoded(request.path, "-._~/:");
  char joint = '?';
  for (const auto& [name, value] : request.query) {
    location += fmt::format("{}{}={}", joint, encoded(name, "-._~"), encoded(value, "-._~"));
    joint = '&';
  }
  return location;
}

}  // namespace

void Standby::leads(const std::string& name, const std::string& why) {
  const MutexLock lock(mutex_);
  leader_ = name;
  why_ = why;
}

std::shared_ptr<Service> Standby::shows(std::shared_ptr<Service> service) {
  const MutexLock lock(mutex_);
  if (service) service->tlsInUse(expiries_);
  service_.swap(service);
  return service;
}

std::shared_ptr<Service> Standby::service() {
  const MutexLock lock(mutex_);
  return service_;
}

Lane Standby::laneOf(const Request& request) const {
  if (request.header(kIndexHeader) != nullptr) return Lane::kSlow;
  const Match match = matchRoute(request.method, request.path);
  return match.route == nullptr ? Lane::kQuick : match.route->lane;
}

void Standby::serve(const std::shared_ptr<Exchange>& exchange) {
  const Request& request = exchange->request;
  if (exchange->principal.role == Role::kNone) {
    return exchange->reply(problem(Error::make(ErrorCode::kPermission, "%s has no role here",
                                               exchange->principal.name.c_str())));
  }
  const std::shared_ptr<Service> service = this->service();
  if (!service || !isForStandby(*exchange)) return exchange->reply(standsBy(request, ""));
  const Status reached = awaitSeen(service->manager(), request);
  if (reached) return service->serve(exchange);
  exchange->reply(reached.error().code() == ErrorCode::kTimedOut
                      ? standsBy(request, reached.error().text())
                      : problem(reached.error()));
}

/// Clients then ask the next one; not 307, which clients of earlier versions do not understand.
Response Standby::standsBy(const Request& request, const std::string& also) {
  const MutexLock lock(mutex_);
  const std::string more = also.empty() ? "" : "; " + also;
  if (leader_.empty()) {
    return standingBy(
        fmt::format("this manager stands by, and it is not known who leads: ask again{}{}{}",
                    why_.empty() ? "" : "; ", why_, more));
  }
  Response response =
      standingBy(fmt::format("this manager stands by, {} leads: ask there{}", leader_, more));
  if (leader_.starts_with("https://")) {
    response.headers.emplace_back("Location", locationOf(leader_, request));
  }
  return response;
}

Response Standby::refuse(const Refused& refused) {
  const std::shared_ptr<Service> service = this->service();
  return service ? service->refuse(refused) : problem(refused.why);
}

void Standby::strangerRefused(const std::string& peer, const std::string& why) {
  if (const std::shared_ptr<Service> service = this->service()) {
    service->strangerRefused(peer, why);
  }
}

void Standby::tlsInUse(const std::vector<CertificateExpiry>& expiries) {
  const MutexLock lock(mutex_);
  expiries_ = expiries;
  if (service_) service_->tlsInUse(expiries);
}

void Standby::clientSeen(const Principal& client, std::time_t not_after) {
  if (const std::shared_ptr<Service> service = this->service()) {
    service->clientSeen(client, not_after);
  }
}

}  // namespace tidepool::api
