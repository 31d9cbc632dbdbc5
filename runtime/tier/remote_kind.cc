// SPDX-License-Identifier: Apache-2.0
// remote:, a memory server, and mirror:, several with the same pages: their rows among the kinds of
// far memory. Thread-safe.
#include <cstring>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/format.h"
#include "runtime/base/numbers.h"
#include "runtime/tier/far_kind.h"
#include "runtime/tier/mirror_tier.h"
#include "runtime/tier/remote_tier.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kPatience(2'000'000'000);

Status setTransport(FarSpec& spec, const SpecText& text, std::string_view name) {
  if (name == "auto") {
    spec.transport = Transport::kAuto;
  } else if (name == "tcp") {
    spec.transport = Transport::kTcp;
  } else if (name == "verbs") {
    spec.transport = Transport::kVerbs;
  } else {
    return badSpec(text, "has a bad transport (verbs, tcp or auto)");
  }
  return {};
}

/// What may follow HOST:PORT: a size, and transport:WHICH, each once.
Status parseRest(FarSpec& spec, const SpecText& text, std::string_view rest) {
  bool sized = false;
  bool chosen = false;
  for (bool more = true; more;) {
    const auto next = [&] {
      const std::string_view word = rest.substr(0, rest.find(':'));
      more = word.size() < rest.size();
      rest.remove_prefix(word.size() + (more ? 1 : 0));
      return word;
    };
    const std::string_view word = next();
    if (word != "transport") {
      if (std::exchange(sized, true)) return badSpec(text, "says more than a size and a transport");
      TP_TRY(setSize(spec, word));
      continue;
    }
    if (!more || std::exchange(chosen, true)) return badSpec(text, "needs one transport");
    TP_TRY(setTransport(spec, text, next()));
  }
  return {};
}

/// The length of the HOST:PORT that `body` begins with; an IPv6 address stands in brackets. ':',
/// '+' or nothing follows.
Result<size_t> serverLength(const SpecText& text, std::string_view body) {
  const size_t host_end = body.starts_with('[') ? body.find("]:") : body.find(':');
  if (host_end == std::string_view::npos) return badSpec(text, "names no port");
  const size_t host_length = host_end + (body[0] == '[' ? 1 : 0);
  if (host_length == 0 || host_length == 2) return badSpec(text, "names no host");
  const std::string_view after = body.substr(host_length + 1);
  const size_t port_length = std::min(after.find_first_of(":+"), after.size());
  const uint64_t port = wholeNumber(after.substr(0, port_length)).value_or(0);
  if (port == 0 || port > 65535) return badSpec(text, "has a bad port (1 to 65535)");
  return host_length + 1 + port_length;
}

/// HOST:PORT at least `least` times and at most `most`, with a plus sign between, then
/// [:SIZE][:transport:WHICH].
Status parseServers(const SpecText& text, FarSpec& spec, size_t least, size_t most) {
  std::string_view rest = text.body;
  for (size_t named = 1;; ++named) {
    const auto length = serverLength(text, rest);
    if (!length) return tl::unexpected(length.error());
    rest.remove_prefix(*length);
    if (!rest.starts_with('+') || named == most) {
      if (named < least) return badSpec(text, "names one memory server, not two");
      break;
    }
    rest.remove_prefix(1);
  }
  TP_TRY(setTarget(spec, text, text.body.substr(0, text.body.size() - rest.size())));
  if (rest.empty()) return {};
  if (rest[0] == '+' && most > 1) return badSpec(text, "names too many memory servers");
  if (rest[0] != ':') return badSpec(text, "has a bad port (1 to 65535)");
  return parseRest(spec, text, rest.substr(1));
}

void printRemote(TextBuffer& out, const FarSpec& spec) {
  printTargetAndSize(out, spec);
  if (spec.transport == Transport::kTcp) out.append(":transport:tcp");
  if (spec.transport == Transport::kVerbs) out.append(":transport:verbs");
}

/// Opens the tier as a program would, with a region of one page: how do pages travel?
void tryPage(const FarSpec& spec, TextBuffer& detail, TierReport& report) {
  FarSpec page = spec;
  page.size = Bytes(kPageSize);
  const auto tier = RemoteTier::open(page, kPatience);
  if (!tier) {
    formatText(report.warning, sizeof report.warning, "%s, but lends no page: %s", report.detail,
               tier.error().text());
    return;
  }
  const TransportCensus& census = *(*tier)->transports();
  formatText(report.transport, sizeof report.transport, "%s", pageWaysName(census.ways()));
  detail.append("; pages by ");
  detail.append(report.transport);
  if (const char* const note = census.firstNote()) {
    detail.append(" (");
    detail.append(note);
    detail.append(')');
  }
  detail.append(", one in ");
  detail.appendFixed(static_cast<double>((*tier)->pageRoundTrip().value()) * 1e-3, 0);
  detail.append(" us");
  const bool missed = spec.transport == Transport::kVerbs && census.ways() != PageWays::kVerbs;
  if (missed) memcpy(report.warning, report.detail, sizeof report.detail);
}

/// One memory server. `far`: the kind of the tier that it is for.
Result<TierReport> checkServer(const char* far, const FarSpec& spec, const TierCheck& how) {
  const auto endpoint = parseEndpoint(spec.target);
  if (!endpoint) return tl::unexpected(endpoint.error());
  const MonotonicClock clock;
  const Nanoseconds start = clock.now();
  const auto connection = connectTcp(*endpoint, kPatience);
  if (!connection) {
    const ErrorCode code = connection.error().code();
    if (code == ErrorCode::kTimedOut) {
      return fail(code,
                  "far tier %s:%s: no answer within 2 s: is `fabricmgr memserver` running "
                  "there, and the port open?",
                  far, spec.target);
    }
    return fail(code, "far tier %s:%s: %s", far, spec.target, connection.error().text());
  }
  TierReport report;
  TextBuffer detail(report.detail);
  detail.append("reachable in ");
  detail.appendFixed(static_cast<double>((clock.now() - start).value()) * 1e-6, 1);
  detail.append(" ms");
  if (how.depth == CheckDepth::kTry) tryPage(spec, detail, report);
  return report;
}

/// All servers of a mirror: the worst of them says how it is. A spare one may be away.
Result<TierReport> checkMirror(const FarSpec& spec, const TierCheck& how) {
  const auto servers = serversOf(spec);
  if (!servers) return tl::unexpected(servers.error());
  TierReport all;
  TextBuffer detail(all.detail);
  for (size_t i = 0; i < servers->count; ++i) {
    const FarSpec& server = servers->specs[i];
    const auto report = checkServer("mirror", server, how);
    if (!report && i < MirrorState::kSides) return report;
    if (!report) {
      formatText(all.warning, sizeof all.warning, "%s", report.error().text());
      continue;
    }
    if (detail.view().size() > 0) detail.append("; ");
    detail.append(server.target);
    detail.append(' ');
    detail.append(report->detail);
    if (report->warning[0] != '\0') {
      formatText(all.warning, sizeof all.warning, "%s: %s", server.target, report->warning);
    }
    // Of RDMA and TCP, TCP.
    if (strcmp(all.transport, "tcp") != 0) {
      formatText(all.transport, sizeof all.transport, "%s", report->transport);
    }
  }
  return all;
}

}  // namespace

extern constinit const FarKind kRemoteKind{
    .name = "remote",
    .form = "remote:HOST:PORT[:SIZE][:transport:WHICH]",
    .help =
        "A memory server: SIZE of its memory, else all that is free, and others get none. An IPv6 "
        "address stands in brackets. WHICH is verbs, tcp or auto: by RDMA where both ends can.",
    .parse = [](const SpecText& text, FarSpec& spec) { return parseServers(text, spec, 1, 1); },
    .print = printRemote,
    .open = [](const FarSpec& spec, const Patience& patience) -> Result<std::unique_ptr<Tier>> {
      return RemoteTier::open(spec, patience);
    },
    .check = [](const FarSpec& spec,
                const TierCheck& how) { return checkServer("remote", spec, how); },
    .tables = TierKind::kFetch,
    .sealing = Sealing::kCan};

extern constinit const FarKind kMirrorKind{
    .name = "mirror",
    .form = "mirror:HOST:PORT+HOST:PORT[+HOST:PORT][:SIZE][:transport:WHICH]",
    .help =
        "Two memory servers that each hold all pages and rows, so that either may die: SIZE of the "
        "memory of each, else all that is free, as much as both have. Then a new copy is made on "
        "the next that is named (up to 8), or the lost one once it is back.",
    .parse =
        [](const SpecText& text, FarSpec& spec) {
          return parseServers(text, spec, MirrorState::kSides, MirrorState::kMostServers);
        },
    .print = printRemote,
    .open = [](const FarSpec& spec, const Patience& patience) -> Result<std::unique_ptr<Tier>> {
      return MirrorTier::open(spec, patience);
    },
    .check = checkMirror,
    .tables = TierKind::kFetch,
    .sealing = Sealing::kCan};

}  // namespace tidepool
