// SPDX-License-Identifier: Apache-2.0
// Running verbs. Data goes to stdout, talk to stderr.
#include "fabricmgr/cli/run.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "fabricmgr/cli/show.h"
#include "fabricmgr/error_table.h"
#include "fabricmgr/expiry.h"
#include "fabricmgr/process.h"
#include "runtime/base/clock.h"

namespace tidepool::cli {
namespace {

using Json = nlohmann::ordered_json;

/// How long one look at an operation lasts at most, in ms: progress is shown as often.
constexpr int kLookEvery = 500;
constexpr uint64_t kPage = 10'000;  // of a list: what the server gives at most

}  // namespace

int complain(const std::string& text, int code) {
  fmt::print(stderr, "fabricmgr: {}\n", text);
  return code;
}

int failed(const client::Reply& reply, const client::Target& target) {
  if (!reply.error.empty()) {
    if (reply.timed_out && reply.status == 0) {
      return complain(fmt::format("no answer from {} in time: {}", target.address, reply.error),
                      kTimedOutCode);
    }
    const std::string over = client::usesHttps(target)
                                 ? expiredAmong(target.certificate, target.ca, std::time(nullptr))
                                 : "";
    if (!over.empty()) {
      return complain(over + ": `fabricmgr ca renew` replaces one, at its authority",
                      kUnreachablePeer);
    }
    return complain(
        fmt::format("cannot reach the fabric manager at {}: {}{}", target.address, reply.error,
                    reply.of_certificates ? ""
                                          : "; is it running, and does TIDEPOOL_FABRIC name the "
                                            "right place?"),
        kUnreachablePeer);
  }
  const Json problem = Json::parse(reply.body, nullptr, false);
  if (!problem.is_object() || !problem.contains("detail")) {
    return complain(fmt::format("{} answered {} without saying why", target.address, reply.status),
                    kFailed);
  }
  return complain(problem.value("detail", ""), rowOf(problem.value("code", "")).exit_code);
}

bool isGood(const client::Reply& reply) {
  return reply.error.empty() && reply.status >= 200 && reply.status < 300;
}

namespace {

void showProgress(const Json& operation, bool last) {
  if (isatty(STDERR_FILENO) == 0) return;
  const uint64_t total = operation.value("total_bytes", uint64_t{0});
  fmt::print(stderr, "\r\033[K{} {}: {} of {}  {}{}", operation.value("kind", ""),
             operation.value("state", ""), bytesText(operation.value("done_bytes", uint64_t{0})),
             bytesText(total), operation.value("text", ""), last ? "\n" : "");
}

/// Follows an operation to its end. Between two looks it waits for the next event.
int waitFor(client::HttpClient& client, uint64_t id, const Settings& settings) {
  const MonotonicClock clock;
  const Nanoseconds start = clock.now();
  uint64_t since = 0;  // 0: from now on
  for (;;) {
    const client::Reply reply = client.get(fmt::format("/v1/operations/{}", id));
    if (!isGood(reply)) return failed(reply, settings.target);
    const Json operation = Json::parse(reply.body, nullptr, false);
    const std::string state = operation.value("state", "");
    showProgress(operation, state != "running");
    if (state == "done") return kDone;
    if (state != "running") {
      return complain(fmt::format("operation {} {}: {}", id, state, operation.value("text", "")),
                      kFailed);
    }
    const uint64_t waited = (clock.now() - start).value() / 1'000'000;
    if (settings.timeout_ms != 0 && waited >= settings.timeout_ms) {
      if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\n");  // after the line of progress
      const std::string text = operation.value("text", "");
      return complain(
          fmt::format("operation {} goes on{}{}; `fabricmgr operation wait {}` follows it", id,
                      text.empty() ? "" : ": ", text, id),
          kTimedOutCode);
    }
    const client::Reply events = client.get(
        since == 0 ? std::string("/v1/events")
                   : fmt::format("/v1/events?since={}&limit=1&wait_ms={}", since, kLookEvery));
    if (isGood(events)) {
      since = Json::parse(events.body, nullptr, false).value("index", since);
    } else {
      since = 0;
      poll(nullptr, 0, kLookEvery);  // the manager is away, or begins anew: it may come back
    }
  }
}

/// Each of many, and what became of it.
int showMany(const Verb& verb, const Json& answer, const Given& given, const Settings& settings) {
  const Json hosts = answer.value("hosts", Json::array());
  if (!settings.json) {
    fmt::print("{}", tableOf(hosts, verb.columns));
    if (given.dry_run) fmt::print(stderr, "a dry run: nothing was changed\n");
    std::fflush(stdout);
  }
  size_t refused = 0;
  for (const Json& host : hosts) refused += host.value("outcome", "") == "refused" ? 1 : 0;
  if (refused == 0) return kDone;
  return complain(fmt::format("{} of {} were refused", refused, hosts.size()), kRefusedCode);
}

int showChange(client::HttpClient& client, const Verb& verb, const Json& answer, const Given& given,
               const Settings& settings) {
  const uint64_t operation = answer.value("operation", uint64_t{0});
  const uint64_t index = answer.value("index", uint64_t{0});
  if (!settings.json) {
    const std::string what =
        verb.noun.empty() ? std::string(verb.verb) : fmt::format("{} {}", verb.noun, verb.verb);
    if (index == 0) {
      fmt::print("{}: {}\n", what, given.dry_run ? "would be done" : "nothing to do");
    } else {
      fmt::print("{}: id {}, index {}{}\n", what, answer.value("id", uint64_t{0}), index,
                 operation == 0 ? "" : fmt::format(", operation {}", operation));
    }
    std::fflush(stdout);
  }
  if (operation == 0 || settings.no_wait) return kDone;
  return waitFor(client, operation, settings);
}

int showVerdict(const Json& answer, bool json) {
  const bool removal = answer.contains("safe");
  if (!json && removal) {
    fmt::print("{}\n", answer.value("text", ""));
    static constexpr Column kHurt[] = {
        {"REGION", "region"}, {"HOST", "host"}, {"STATE", "state"}, {"BYTES", "bytes", As::kBytes}};
    if (!answer["hurt"].empty()) fmt::print("{}", tableOf(answer["hurt"], kHurt));
  } else if (!json) {
    fmt::print("{}", thingOf(answer));
  }
  if (removal) return answer.value("safe", false) ? kDone : kRefusedCode;
  return answer.value("good", false) ? kDone : kFailed;
}

/// `path` with the parameter set, in place of an older value.
std::string withParameter(std::string path, const std::string& name, uint64_t value) {
  const size_t query = path.find('?');
  for (const char* before : {"?", "&"}) {
    const size_t at = path.find(before + name + "=", query);
    if (at == std::string::npos) continue;
    const size_t end = path.find('&', at + 1);
    path.erase(at + 1, end == std::string::npos ? end : end - at);
  }
  const bool first = path.find('?') == std::string::npos;
  const bool joined = path.ends_with('?') || path.ends_with('&');
  return path + (first ? "?" : joined ? "" : "&") + fmt::format("{}={}", name, value);
}

/// All pages of a list. Events go on from their index, other lists from their cursor.
int showTable(client::HttpClient& client, const Verb& verb, const std::string& path, Json page,
              const Settings& settings) {
  Json items = Json::array();
  const bool events = verb.noun == "event";
  for (;;) {
    for (Json& item : page["items"]) items.push_back(std::move(item));
    const uint64_t next = events && !page["items"].empty() ? page.value("index", uint64_t{0})
                                                           : page.value("next", uint64_t{0});
    if (next == 0) break;
    const client::Reply reply = client.get(withParameter(path, events ? "since" : "cursor", next));
    if (!isGood(reply)) return failed(reply, settings.target);
    page = Json::parse(reply.body, nullptr, false);
  }
  const Width width = settings.output == "wide" ? Width::kWide : Width::kUsual;
  fmt::print("{}",
             settings.output == "name" ? namesOf(items) : tableOf(items, verb.columns, width));
  return kDone;
}

int nothingAt(const Verb& verb, const Given& given) {
  const char* what = verb.noun == "event" ? "nothing is known to have changed at index"
                                          : "the audit has no record";
  return complain(fmt::format("{} {}", what, given.operand), kNotFoundCode);
}

/// What stands at the operand is first in the page, or is not there any more.
int showAt(const Verb& verb, const Json& page, const Given& given, const client::Reply& reply,
           const Settings& settings) {
  const bool event = verb.noun == "event";
  const Json items = page.value("items", Json::array());
  const uint64_t found =
      items.empty() ? 0 : items[0].value(event ? "index" : "sequence", uint64_t{0});
  if (found != std::stoull(given.operand)) return nothingAt(verb, given);
  if (settings.json) {
    std::fwrite(reply.body.data(), 1, reply.body.size(), stdout);
  } else {
    fmt::print("{}", event ? tableOf(items, verb.columns) : thingOf(items[0]));
  }
  return kDone;
}

int show(client::HttpClient& client, const Verb& verb, const Given& given, const std::string& path,
         const client::Reply& reply, const Settings& settings) {
  const Json answer = Json::parse(reply.body, nullptr, false);
  if (answer.is_object() && verb.show == Show::kAt) {
    return showAt(verb, answer, given, reply, settings);
  }
  if (settings.json) {
    std::fwrite(reply.body.data(), 1, reply.body.size(), stdout);
    std::fflush(stdout);
  }
  if (!answer.is_object()) return complain("the answer is not what was expected", kFailed);
  switch (verb.show) {
    case Show::kTable:
      return settings.json ? kDone : showTable(client, verb, path, answer, settings);
    case Show::kChange:
      if (isOfMany(verb, given)) return showMany(verb, answer, given, settings);
      return showChange(client, verb, answer, given, settings);
    case Show::kWait:
      return waitFor(client, answer.value("id", uint64_t{0}), settings);
    case Show::kVerdict:
      return showVerdict(answer, settings.json);
    case Show::kHealth:
      if (!settings.json) fmt::print("{}", healthOf(answer));
      return answer.value("health", "") == "error" ? kFailed : kDone;
    case Show::kStatus:
      if (!settings.json) fmt::print("{}", statusOf(answer));
      return kDone;
    default:
      if (!settings.json) fmt::print("{}", thingOf(answer));
      return kDone;
  }
}

}  // namespace

int runVerb(const Verb& verb, const Given& given, const Settings& settings) {
  BuiltRequest request = buildRequest(verb, given);
  if (verb.show == Show::kTable && request.path.find("/evidence") == std::string::npos) {
    request.path = withParameter(request.path, "limit", kPage);
  }
  client::HttpClient client(settings.target);
  std::vector<std::string> headers;
  if (verb.show == Show::kChange && !settings.key.empty()) {
    headers.push_back("Idempotency-Key: " + settings.key);
  }
  if (verb.show == Show::kChange && settings.if_match != 0) {
    headers.push_back(fmt::format("If-Match: \"{}\"", settings.if_match));
  }
  const client::Reply reply =
      verb.method == "GET"
          ? client.get(request.path)
          : client.send(std::string(verb.method), request.path, request.body, headers);
  if (verb.show == Show::kAt && reply.status == 404) return nothingAt(verb, given);
  if (!isGood(reply)) return failed(reply, settings.target);
  if (!reply.age.empty()) {
    fmt::print(stderr, "of a manager that stands by: as of index {}, the latest one {} s ago\n",
               reply.index, reply.age);
  }
  return show(client, verb, given, request.path, reply, settings);
}

int runWatch(const std::string& host, uint64_t since, bool from_now, const Settings& settings) {
  client::HttpClient client(settings.target);
  const std::string filter = host.empty() ? "" : "&host=" + client::HttpClient::escape(host);
  if (from_now) {
    const client::Reply reply = client.get("/v1/events?limit=1" + filter);
    if (!isGood(reply)) return failed(reply, settings.target);
    since = Json::parse(reply.body, nullptr, false).value("index", since);
  }
  const auto take = [&](const std::string& text) {
    const Json batch = Json::parse(text, nullptr, false);
    if (!batch.is_object()) return true;
    for (const Json& event : batch["items"]) {
      since = event.value("index", since);
      fmt::print("{}", settings.json ? event.dump() + "\n" : eventLine(event));
    }
    return std::fflush(stdout) == 0;
  };
  for (bool connected = false;;) {
    const client::Reply reply =
        client.stream(fmt::format("/v1/events?since={}{}", since, filter), take);
    if (ferror(stdout) != 0) return kDone;  // the reader has gone
    if (reply.status != 0 && reply.status != 200) return failed(reply, settings.target);
    if (reply.status == 0 && !connected) return failed(reply, settings.target);
    if (reply.status == 0) poll(nullptr, 0, 1000);  // away; try again
    connected = true;
  }
}

}  // namespace tidepool::cli
