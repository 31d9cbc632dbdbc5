// SPDX-License-Identifier: Apache-2.0
// Service: the checks that all routes have in common, and the log.
#include "fabricmgr/api/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fabricmgr/api/call_tools.h"
#include "fabricmgr/api/problem.h"
#include "fabricmgr/api/schemas.h"

namespace tidepool::api {
namespace {

constexpr Rate kRefusedLines = {5, 50};

std::string rolesText(Roles roles) {
  std::string text;
  for (const Role role : {Role::kViewer, Role::kOperator, Role::kHost, Role::kAdmin}) {
    if (includes(roles, role)) text += (text.empty() ? "" : ", ") + std::string(nameOf(role));
  }
  return text;
}

Response notPermitted(const Principal& principal, const Route& route) {
  if (principal.role == Role::kNone) {
    return problem(
        Error::make(ErrorCode::kPermission,
                    "%s has no role here: an administrator gives your user or group one in the "
                    "section [unix] of the configuration",
                    principal.name.c_str()));
  }
  return problem(Error::make(ErrorCode::kPermission, "%s may not do this: it takes one of: %s",
                             principal.actor().c_str(), rolesText(route.roles).c_str()));
}

Response wrongInput(const InputFault& fault) {
  return problem(400, errorCodeName(ErrorCode::kInvalidArgument), {fault.detail, fault.field});
}

bool isJson(const Request& request) {
  const std::string* given = request.header("content-type");
  if (given == nullptr) return false;
  const std::string type = given->substr(0, given->find(';'));
  return type == "application/json" ||
         (type == "application/merge-patch+json" && request.method == "PATCH");
}

/// The body of a request whose route has one, checked.
tl::expected<JsonValue, Response> readBody(const Request& request, const Schema* schema) {
  JsonValue nothing;
  nothing.kind = JsonValue::Kind::kObject;
  if (schema == nullptr) {
    if (request.body.empty()) return nothing;
    return tl::unexpected(wrongInput({"", "nothing is expected in the body of this request"}));
  }
  if (!request.body.empty()) {
    const std::string* encoding = request.header("content-encoding");
    if (encoding != nullptr && *encoding != "identity") {
      return tl::unexpected(problem(Refusal{415, "the body has to be sent without an encoding"}));
    }
    if (!isJson(request)) {
      return tl::unexpected(problem(Refusal{415, "the body has to be application/json"}));
    }
    auto value = parseJson(request.body);
    if (!value) return tl::unexpected(wrongInput(value.error()));
    nothing = std::move(*value);
  }
  if (auto good = check(nothing, *schema); !good) return tl::unexpected(wrongInput(good.error()));
  return nothing;
}

/// On the manager's own machine an administrator may speak as a host's agent: so an agent needs no
/// certificate there.
Result<Principal> speaksAs(const Exchange& exchange) {
  const std::string* host = exchange.request.header("tidepool-host");
  if (host == nullptr) return exchange.principal;
  if (exchange.principal.role != Role::kAdmin || exchange.peer != kUnixPeer) {
    return fail(ErrorCode::kPermission,
                "only an administrator on the Unix socket may speak for a host by Tidepool-Host");
  }
  return principalOfUrn("urn:tidepool:host:" + *host);
}

/// What the client itself made a condition, and does not hold, has a status of its own.
Response problemOf(const Error& error, const Request& request) {
  if (!fabric::isOutdated(error) || request.header("if-match") == nullptr) return problem(error);
  return problem(412, errorCodeName(error.code()), {error.text(), ""});
}

Turned kindOf(int status) {
  if (status == 401 || status == 403) return Turned::kRole;
  if (status == 408) return Turned::kTooSlow;
  return status == 429 || status == 503 ? Turned::kTooMuch : Turned::kMalformed;
}

}  // namespace

Service::Service(fabric::Manager& manager, const Clock& clock, std::string version, Log log)
    : manager_(manager),
      clock_(clock),
      version_(std::move(version)),
      log_(std::move(log)),
      started_(clock.now()),
      hub_(std::make_unique<WatchHub>(manager, clock)),
      refused_lines_(kRefusedLines, clock.now()) {}

Lane Service::laneOf(const Request& request) const {
  const Match match = matchRoute(request.method, request.path);
  return match.route == nullptr ? Lane::kQuick : match.route->lane;
}

void Service::serve(const std::shared_ptr<Exchange>& exchange) {
  const Nanoseconds start = clock_.now();
  const Request& request = exchange->request;
  Match match = matchRoute(request.method, request.path);
  std::optional<Response> response;
  std::string why;
  if (match.route == nullptr) {
    response = match.allowed.empty()
                   ? problem(Refusal{404,
                                     "there is nothing at this path: GET /v1/openapi.json has "
                                     "all there is"})
                   : problem(Refusal{405, "this path takes " + match.allowed});
    if (!match.allowed.empty()) response->headers.emplace_back("Allow", match.allowed);
  } else {
    Response wrong;
    Outcome outcome = answer(*match.route, std::move(match.path), exchange, &wrong);
    if (outcome) {
      response = std::move(*outcome);
    } else if (wrong.status != 200) {
      response = std::move(wrong);
    } else {
      response = problemOf(outcome.error(), request);
      why = outcome.error().text();
    }
  }
  const int status = response ? response->status : 200;
  if (response) {
    addIndex(manager_, &response->headers);
    exchange->reply(std::move(*response));
  }
  const Nanoseconds took = clock_.now() - start;
  if (match.route != nullptr) metrics_.served(*match.route, status, took);
  logAccess(*exchange, match.route, status, took, why);
}

Outcome Service::answer(const Route& route, std::vector<std::string> path,
                        const std::shared_ptr<Exchange>& exchange, Response* wrong) {
  const Request& request = exchange->request;
  const auto refused = [&](Response response) {
    *wrong = std::move(response);
    return fail(ErrorCode::kInvalidArgument, "refused");
  };
  const auto principal = speaksAs(*exchange);
  if (!principal || !includes(route.roles, principal->role)) {
    metrics_.turnedAway(Turned::kRole);
    return refused(principal ? notPermitted(*principal, route) : problem(principal.error()));
  }
  auto query = readQuery(request.query, *route.query);
  if (!query) return refused(wrongInput(query.error()));
  auto body = readBody(request, route.body);
  if (!body) return refused(std::move(body.error()));
  const Call call = {*this,           exchange,          *principal,
                     std::move(path), std::move(*query), std::move(*body)};
  try {
    return route.handler(call);
  } catch (const std::exception& error) {
    return fail(ErrorCode::kInternal, "%s", error.what());
  }
}

Response Service::refuse(const Refused& refused) {
  metrics_.turnedAway(kindOf(refused.why.status));
  logRefused(fmt::format("refused peer={} principal={} status={} why=\"{}\"", *refused.peer,
                         refused.principal->actor(), refused.why.status, refused.why.detail));
  return problem(refused.why);
}

void Service::strangerRefused(const std::string& peer, const std::string& why) {
  metrics_.turnedAway(Turned::kHandshake);
  logRefused(fmt::format("refused peer={} at the handshake: {}", peer, why));
}

void Service::inTrouble(const std::string& why) {
  metrics_.turnedAway(Turned::kTooMuch);
  log_(Level::kError, why);
}

void Service::tlsInUse(const std::vector<CertificateExpiry>& expiries) {
  expiries_.setOwn(expiries);
  expiries_.forgetClients();
}

void Service::clientSeen(const Principal& client, std::time_t not_after) {
  expiries_.saw(client.actor(), not_after, std::time(nullptr));
}

void Service::tellOfExpiries() {
  const auto line = expiries_.lineDue(std::time(nullptr));
  if (!line) return;
  log_(line->left == Left::kNone ? Level::kError : Level::kWarning,
       line->text + ": `fabricmgr certificate list` has all; `fabricmgr ca renew`");
}

void Service::logAccess(const Exchange& exchange, const Route* route, int status, Nanoseconds took,
                        const std::string& why) {
  const Request& request = exchange.request;
  std::string line =
      fmt::format("{} {} status={} us={} bytes={} principal={} peer={}",
                  request.method.substr(0, 16), request.path.substr(0, 200), status,
                  took.value() / 1000, exchange.sent(), exchange.principal.actor(), exchange.peer);
  if (status == 401 || status == 403 || route == nullptr) return logRefused("refused " + line);
  if (!why.empty()) line += fmt::format(" why=\"{}\"", why);
  if (status >= 500 && status != 507) {  // no room is an answer like others
    return log_(status == 500 ? Level::kError : Level::kWarning, line);
  }
  const bool change = route->shape == Shape::kChange;
  log_(change ? Level::kInfo : Level::kDebug, line);
}

void Service::logRefused(const std::string& line) {
  uint64_t unsaid = 0;
  {
    const MutexLock lock(mutex_);
    if (!refused_lines_.take(clock_.now())) {
      ++unsaid_;
      return;
    }
    unsaid = std::exchange(unsaid_, 0);
  }
  log_(Level::kWarning,
       unsaid == 0 ? line : fmt::format("{} (and {} more not said)", line, unsaid));
}

}  // namespace tidepool::api
