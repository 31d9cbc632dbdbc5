// SPDX-License-Identifier: Apache-2.0
// Operations, events and the audit: what goes on and went on.
#include <charconv>

#include "fabricmgr/api/call_tools.h"

namespace tidepool::api {
namespace {

constexpr uint32_t kUsualEvents = 1000;

struct Wanted {
  fabric::Index since;
  uint32_t limit = kUsualEvents;
  std::string host;
  Watcher watcher;
};

/// What the parameters and headers of a request for events come to.
Result<Wanted> wantedOf(const Call& call) {
  fabric::Manager& manager = call.service.manager();
  const Request& request = call.exchange->request;
  Wanted wanted;
  wanted.since = call.query.find("since") != nullptr ? fabric::Index(call.query.count("since"))
                                                     : manager.index();
  if (call.query.find("limit") != nullptr) {
    wanted.limit = static_cast<uint32_t>(call.query.count("limit"));
  }
  wanted.host = call.query.text("host");
  const Principal& principal = call.principal;
  if (principal.role == Role::kHost && wanted.host.empty()) wanted.host = principal.name;
  TP_TRY(checkMine(call, wanted.host));
  if (!wanted.host.empty()) {
    const auto host = manager.showHost(wanted.host);
    if (!host) return tl::unexpected(host.error());
    wanted.watcher.host = host->host.id;
  }
  const std::string* accept = request.header("accept");
  if (accept != nullptr && accept->find("text/event-stream") != std::string::npos) {
    wanted.watcher.kind = Watch::kStream;
  }
  // A browser or library that lost a stream asks on from the last one it got.
  if (const std::string* last = request.header("last-event-id")) {
    uint64_t index = 0;
    const char* end = last->data() + last->size();
    if (std::from_chars(last->data(), end, index).ptr != end || last->empty()) {
      return fail(ErrorCode::kInvalidArgument, "Last-Event-ID has to be the id of an event");
    }
    wanted.since = fabric::Index(index);
  }
  wanted.watcher.exchange = call.exchange;
  wanted.watcher.until = call.service.clock().now() + fromMilliseconds(call.query.count("wait_ms"));
  return wanted;
}

}  // namespace

Outcome listOperations(const Call& call) {
  return list(call, call.service.manager().listOperations(pageOf(call)));
}

Outcome showOperation(const Call& call) {
  const auto number = numberOf(call, "an operation");
  if (!number) return tl::unexpected(number.error());
  const auto operation = call.service.manager().showOperation(fabric::OperationId(*number));
  if (!operation) return tl::unexpected(operation.error());
  const Principal& principal = call.principal;
  // An agent follows what it started itself.
  if (principal.role == Role::kHost && operation->actor != principal.actor()) {
    return fail(ErrorCode::kPermission, "operation %s was not started by %s",
                call.path.front().c_str(), principal.actor().c_str());
  }
  return one(call, operation);
}

Outcome listEvents(const Call& call) {
  auto wanted = wantedOf(call);
  if (!wanted) return tl::unexpected(wanted.error());
  fabric::Manager& manager = call.service.manager();
  Watcher& watcher = wanted->watcher;
  const bool stream = watcher.kind == Watch::kStream;
  const bool wait = stream || call.query.count("wait_ms") != 0;
  watcher.since = wanted->since;
  for (bool first = true;; first = false) {
    const auto events = manager.eventsSince(watcher.since, wanted->limit, wanted->host);
    if (!events) return tl::unexpected(events.error());
    const auto names = namesFor<fabric::Event>(manager, events->events);
    if (!stream && (!wait || !events->events.empty())) {
      return Response{
          200, "application/json", {}, eventsJson(events->events, events->index, names)};
    }
    if (stream && first) {
      Response head = {200, "text/event-stream", {}, ""};
      addIndex(manager, &head.headers);
      call.exchange->openStream(std::move(head));
    }
    if (stream) call.exchange->write(eventsStream(events->events, names));
    // No progress means: no events, and nothing newer that would be durable yet.
    watcher.since = events->index;
    if (call.exchange->gone() || call.service.hub().park(watcher)) return std::nullopt;
  }
}

Outcome listAudit(const Call& call) {
  return list(call, call.service.manager().listAudit(pageOf(call)));
}

Outcome verifyAudit(const Call& call) { return one(call, call.service.manager().verifyAudit()); }

}  // namespace tidepool::api
