// SPDX-License-Identifier: Apache-2.0
// Agent: the parts put together, and what it says about itself.
#include "fabricmgr/agent/agent.h"

#include <fmt/format.h>

#include <ctime>
#include <utility>

#include "fabricmgr/api/json_writer.h"
#include "fabricmgr/api/rate_limit.h"
#include "fabricmgr/key_file.h"
#include "fabricmgr/model/types.h"
#include "fabricmgr/process.h"

namespace tidepool::agent {
namespace {

constexpr Nanoseconds kNotifyEvery(5'000'000'000);
constexpr api::Rate kRefusalLines = {5, 20};  // in the log

/// As fabric::checkName(), but says which name is meant: it may be the machine's own.
Status checkOwnName(const char* what, const std::string& name) {
  const Status good = fabric::checkName(what, name);
  if (good) return good;
  return fail(ErrorCode::kInvalidArgument, "'%.63s' cannot be used: %s", name.c_str(),
              good.error().text());
}

/// Until the first of them ends; 0: it has, or there is none.
uint64_t secondsTo(const std::vector<CertificateExpiry>& expiries, std::time_t now) {
  const bool over = expiries.empty() || expiries.front().end <= now;
  return over ? 0 : static_cast<uint64_t>(expiries.front().end - now);
}

}  // namespace

Result<std::unique_ptr<Agent>> Agent::start(Options options, Log log) {
  TP_TRY(checkKeyFile(options.manager.key));
  TP_TRY(checkOwnName("host", options.host));
  if (!options.domain.empty()) TP_TRY(checkOwnName("domain", options.domain));
  std::unique_ptr<Agent> agent(new Agent(std::move(options), std::move(log)));
  TP_TRY(agent->setUp());
  return agent;
}

Status Agent::setUp() {
  auto journal = Journal::open(options_.journal);
  if (!journal) return tl::unexpected(journal.error());
  journal_ = std::move(*journal);
  client::Target target = options_.manager;
  // On the manager's own machine an administrator speaks for a host; elsewhere the certificate
  // does.
  target.unix_headers = {"Tidepool-Host: " + options_.host};
  pin_ = std::make_unique<FabricPin>(journal_->fabric(), [this](const Journal::Fabric& fabric) {
    loop_.post([this, fabric] {
      const Status written = journal_->belongsTo(fabric);
      if (!written) log_(LogLevel::kWarning, written.error().text());
    });
  });
  try {
    link_ = std::make_unique<ManagerLink>(loop_, *pin_, std::move(target));
  } catch (const std::exception& error) {
    return fail(ErrorCode::kInvalidArgument, "%s", error.what());
  }
  LocalServer::Setup server;
  server.loop = &loop_;
  server.path = options_.socket;
  server.host = options_.host;
  server.allowed = options_.allowed;
  server.request = [this](ProgramId program, const agent_wire::Request& request) {
    onRequest(program, request);
  };
  server.gone = [this](ProgramId program) { regions_->programGone(program); };
  server.cut_off = [this](ProgramId program) { regions_->programCutOff(program); };
  server.refused = [this, bucket = api::TokenBucket(kRefusalLines, clock_.now()),
                    left_out = uint64_t{0}](const std::string& line) mutable {
    if (!bucket.take(clock_.now())) return (void)++left_out;
    const std::string more = left_out == 0 ? "" : fmt::format(" ({} more like it)", left_out);
    left_out = 0;
    log_(LogLevel::kWarning, line + more);
  };
  server_ = std::make_unique<LocalServer>(std::move(server));
  regions_ = std::make_unique<Regions>(Regions::Setup{&loop_, link_.get(), journal_.get(),
                                                      server_.get(), options_.host, log_,
                                                      [this] { contact_->relist(); }, &lease_});
  contact_ = std::make_unique<Contact>(Contact::Setup{
      &loop_, link_.get(), regions_.get(), options_.host, options_.domain, options_.lease, log_,
      [this] { notify(); },
      [this](Nanoseconds length) { server_->renewLease(lease_.until(), length); }, &lease_});
  regions_->restore();
  return server_->listen();
}

Agent::~Agent() {
  notify_timer_.reset();
  link_.reset();
}

void Agent::run() {
  notify_timer_ = std::make_unique<Trigger>(loop_, [this](short) { notify(); });
  notifyServiceManager("READY=1");
  notify();
  contact_->start();
  loop_.run();
  notifyServiceManager("STOPPING=1");
}

void Agent::onRequest(ProgramId program, const agent_wire::Request& request) {
  using agent_wire::RequestKind;
  switch (request.kind) {
    case RequestKind::kAsk:
      return regions_->ask(program, request);
    case RequestKind::kReclaim:
      return regions_->reclaim(program, request);
    case RequestKind::kReturn:
      return regions_->giveBack(program, request);
    case RequestKind::kLeft:
      return regions_->reportLeft(program, request);
    case RequestKind::kAll:
      return regions_->reclaimedAll(program);
    case RequestKind::kHello:  // the server's own
      return;
    case RequestKind::kStatus:
      break;
  }
  const std::string text = status();
  agent_wire::Notice notice;
  notice.kind = agent_wire::NoticeKind::kStatus;
  notice.tag = request.tag;
  notice.text = text;
  server_->tell(program, notice, nullptr);
}

std::string Agent::status() {
  lookAtCertificates();
  const RegionCounts counts = regions_->counts();
  const std::time_t now = std::time(nullptr);
  const std::vector<CertificateExpiry> expiries = expiries_.all(now);
  const Left left = expiries.empty() ? Left::kEnough : leftOf(expiries.front().end, now);
  const bool member = contact_->standing() == Standing::kMember && lease_.runs();
  const bool good = member && left != Left::kNone;
  api::JsonWriter out;
  out.beginObject()
      .field("health", !good                 ? "error"
                       : left == Left::kSoon ? "warning"
                                             : "ok")
      .field("host", options_.host)
      .field("manager", nameOf(contact_->standing()))
      .field("trouble", contact_->trouble())
      .field("fabric", journal_->fabric().id)
      .field("term", journal_->fabric().term)
      .field("lease_left_ms", lease_.left().value() / 1'000'000)
      .field("programs", uint64_t{server_->size()})
      .field("regions", counts.regions)
      .field("bytes", counts.bytes.value())
      .field("held", counts.held)
      .field("held_bytes", counts.held_bytes.value())
      .field("ready", counts.ready)
      .field("draining", counts.draining)
      .field("being_prepared", counts.dirty)
      .field("next_expiry_of", expiries.empty() ? "" : whatIs(expiries.front()))
      .field("next_expiry_seconds", secondsTo(expiries, now))
      .endObject();
  return out.take();
}

void Agent::lookAtCertificates() {
  const client::Target& target = options_.manager;
  std::vector<CertificateExpiry> own;
  for (const auto& [path, kind] :
       {std::pair(&target.certificate, "client"), std::pair(&target.ca, "ca")}) {
    if (path->empty() || !client::usesHttps(target)) continue;
    const auto some = expiriesIn(*path, kind);
    // What cannot be read keeps the agent from the manager, and that is said.
    if (some) own.insert(own.end(), some->begin(), some->end());
  }
  expiries_.setOwn(std::move(own));
  const auto line = expiries_.lineDue(std::time(nullptr));
  if (line) log_(LogLevel::kWarning, line->text);
}

void Agent::notify() {
  lookAtCertificates();
  const RegionCounts counts = regions_->counts();
  notifyServiceManager(
      fmt::format("WATCHDOG=1\nSTATUS=manager: {}; {} of {} regions in use by {} programs",
                  nameOf(contact_->standing()), counts.held, counts.regions, server_->size()));
  if (notify_timer_) notify_timer_->after(kNotifyEvery);
}

}  // namespace tidepool::agent
