// SPDX-License-Identifier: Apache-2.0
// Regions, towards programs: asking, reclaiming, giving back, and what follows from a program's
// end.
#include "fabricmgr/agent/regions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fabricmgr/api/json_writer.h"
#include "runtime/base/check.h"

namespace tidepool::agent {
namespace {

std::string_view nameOf(agent_wire::Waits waits) {
  constexpr std::string_view kNames[] = {"nothing", "room", "room-or-device", "checkpoint",
                                         "table"};
  return kNames[static_cast<size_t>(waits)];
}

/// A program's report, for the manager.
std::string drainProgress(const agent_wire::Request& request, const ProcessId& process) {
  api::JsonWriter body;
  body.beginObject()
      .field("left_bytes", request.size.value())
      .field("process", static_cast<uint64_t>(process.pid))
      .field("waits_for", nameOf(request.waits))
      .endObject();
  return body.take();
}

using agent_wire::Notice;
using agent_wire::NoticeKind;
using agent_wire::Request;
using agent_wire::Want;

// Of one program: enough for any that grows in sensible steps, and bounds what one can cost.
constexpr unsigned kMostAsking = 16;
constexpr size_t kMostHeld = 1024;
constexpr Nanoseconds kReportEvery(500'000'000);
// Of all programs together: a fraction of what the manager takes of one host by default.
constexpr api::Rate kAskRate = {40, 100};
constexpr api::Rate kReportRate = {20, 40};

/// Whether a region of `size` serves one who wants `wanted` better than one of `best`: the smallest
/// that is large enough, else the largest.
bool isBetter(Bytes size, Bytes best, Bytes wanted) {
  const bool enough = size >= wanted && wanted != Bytes();
  const bool best_enough = best >= wanted && wanted != Bytes();
  if (enough != best_enough) return enough;
  return enough ? size < best : size > best;
}

Notice noticeOf(NoticeKind kind, uint64_t tag, uint64_t region, Epoch epoch, Bytes size) {
  Notice notice;
  notice.kind = kind;
  notice.tag = tag;
  notice.region = region;
  notice.epoch = epoch;
  notice.size = size;
  return notice;
}

}  // namespace

Regions::Regions(Setup setup)
    : setup_(std::move(setup)),
      asks_(kAskRate, clock_.now()),
      reports_(kReportRate, clock_.now()) {}
Regions::~Regions() = default;

void Regions::restore() {
  const auto records = setup_.journal->records();
  for (const auto& [id, record] : records) {
    Entry& entry = entries_[id];
    entry.id = id;
    entry.epoch = record.epoch;
    entry.owner = record.uid;
    entry.clean = record.clean;
    for (const auto& [holder, client] : record.holders) entry.holds[holder].client = client;
    for (const auto& [holder, client] : record.holders) watchEnd(entry, holder);
  }
}

Regions::Entry* Regions::find(uint64_t region, Epoch epoch) {
  const auto found = entries_.find(region);
  return found == entries_.end() || found->second.epoch != epoch ? nullptr : &found->second;
}

/// The region of the request, if this very connection has it; else the request is refused.
Regions::Entry* Regions::findHeld(ProgramId program, const Request& request) {
  Entry* entry = find(request.region, request.epoch);
  const auto held = held_by_.find(program);
  if (entry != nullptr && held != held_by_.end() && held->second.contains(request.region)) {
    return entry;
  }
  setup_.programs->refuse(
      program, request.tag, request.region,
      Error::make(ErrorCode::kNotFound,
                  "this program does not have region %llu: reclaim it first, if it did",
                  static_cast<unsigned long long>(request.region)));
  return nullptr;
}

void Regions::answered(ProgramId program) {
  const auto found = asking_.find(program);
  if (found != asking_.end() && --found->second == 0) asking_.erase(found);
}

void Regions::refuse(const Asking& asking, const Error& error) {
  answered(asking.program);
  setup_.programs->refuse(asking.program, asking.request.tag, 0, error);
}

void Regions::refuseWaiting(Entry& entry, const Error& error) {
  if (!entry.waiting) return;
  const Asking asking = *std::exchange(entry.waiting, std::nullopt);
  refuse(asking, error);
}

void Regions::note(const Status& written) {
  if (!written) setup_.log(LogLevel::kWarning, written.error().text());
}

void Regions::warn(const char* what, uint64_t region, const Error& error) {
  failed_ = true;
  setup_.log(LogLevel::kWarning, fmt::format("cannot {} region {} now, it is tried again: {}", what,
                                             region, error.text()));
}

void Regions::ask(ProgramId program, const Request& request) {
  const auto held = held_by_.find(program);
  const bool full = held != held_by_.end() && held->second.size() >= kMostHeld;
  if (full || asking_[program] >= kMostAsking) {
    return setup_.programs->refuse(
        program, request.tag, 0,
        Error::make(ErrorCode::kNoSpace,
                    full ? "this program has %zu regions, the most that one "
                           "may have: ask for larger ones"
                         : "%zu requests of this program are under way: wait "
                           "for their answers",
                    full ? kMostHeld : size_t{kMostAsking}));
  }
  ++asking_[program];
  decide({program, request}, Listed::kNo);
}

bool Regions::isAwaited(const Entry& entry) const {
  const auto moved = entries_.find(entry.replaces);
  return moved != entries_.end() && !moved->second.holds.empty();
}

bool Regions::isFor(const Entry& entry, const ProcessId& process) const {
  if (!isAwaited(entry)) return !entry.on_demand;
  return entries_.at(entry.replaces).holds.contains(process);
}

/// Idle, and of a kind that was asked for. Regions that are being made ready count, too. What takes
/// the place of one that the process has comes first, so that its pages go where they were sent.
Regions::Entry* Regions::bestFor(const Asking& asking, const Peer& peer) {
  Entry* best = nullptr;
  for (auto& [id, entry] : entries_) {
    const bool idle = entry.confirmed && isFor(entry, peer.process) && !entry.draining &&
                      entry.holds.empty() && !entry.waiting && entry.work != Work::kReleasing;
    // What is being attached may turn out to be of the wrong kind: then it is decided anew.
    const bool known =
        entry.attached ? entry.attached->fits(asking.request.want) : entry.work == Work::kAttaching;
    if (!idle || !known || (entry.owner && *entry.owner != peer.uid)) continue;
    if (isAwaited(entry)) return &entry;
    if (best == nullptr || isBetter(entry.size, best->size, asking.request.size)) best = &entry;
  }
  return best;
}

void Regions::decide(Asking asking, Listed listed) {
  const Peer* peer = setup_.programs->find(asking.program);
  if (peer == nullptr) return answered(asking.program);
  if (Entry* best = bestFor(asking, *peer)) {
    best->waiting = asking;
    if (best->work != Work::kNone) return;
    return best->clean ? handOut(*best) : erase(*best);
  }
  if (listed == Listed::kNo) {
    if (!asks_.take(clock_.now())) {
      return refuse(asking, Error::make(ErrorCode::kNoSpace,
                                        "this host's programs ask for regions "
                                        "too often: ask again in a second"));
    }
    // What an operator assigned a moment ago counts: look before asking for more.
    asking.moment = ++moment_;
    unlisted_.push_back(asking);
    return setup_.relist();
  }
  if (asking.request.size == Bytes()) {
    return refuse(asking, Error::make(ErrorCode::kNoSpace,
                                      "no region stands ready on host %.63s: give a SIZE, or let "
                                      "an operator assign one (fabricmgr region assign --host "
                                      "%.63s --size SIZE)",
                                      setup_.host.c_str(), setup_.host.c_str()));
  }
  assign(asking);
}

void Regions::unlisted(const Error& error) {
  for (const Asking& asking : std::exchange(unlisted_, {})) refuse(asking, error);
}

void Regions::assign(const Asking& asking) {
  api::JsonWriter body;
  body.beginObject()
      .field("host", setup_.host)
      .field("size_bytes", asking.request.size.value())
      .field("label", kOnDemandLabel);
  if (asking.request.want != Want::kAny) {
    body.field("class", asking.request.want == Want::kDirect ? "cxl" : "remote");
  }
  body.endObject();
  ++assigning_;
  setup_.link->run(
      Lane::kWork, [text = body.take()](Asker& asker) { return asker.post("/v1/regions", text); },
      [this, asking](Result<api::JsonValue> answer) { assigned(asking, answer); });
}

void Regions::assigned(const Asking& asking, const Result<api::JsonValue>& answer) {
  --assigning_;
  ++moment_;
  if (!answer) {
    // It may have been carried out all the same: the next list shows it, and it is given back.
    setup_.relist();
    return refuse(asking, answer.error());
  }
  Entry& entry = entries_[answer->count("id")];
  entry.id = answer->count("id");
  entry.on_demand = entry.confirmed = entry.clean = true;
  entry.since = moment_;
  entry.waiting = asking;
  attach(entry);
}

void Regions::handOut(Entry& entry) {
  const Asking asking = *std::exchange(entry.waiting, std::nullopt);
  answered(asking.program);
  const Peer* peer = setup_.programs->find(asking.program);
  if (peer == nullptr) return settle(entry);
  if (!setup_.lease->runs()) {
    setup_.programs->refuse(asking.program, asking.request.tag, 0,
                            Error::make(ErrorCode::kUnreachable,
                                        "the lease of host %.63s is over and the manager away: its "
                                        "regions may be others' by now",
                                        setup_.host.c_str()));
    return settle(entry);
  }
  // From here on the journal takes it for dirty, and for this user's.
  const Status written =
      setup_.journal->held(entry.id, entry.epoch, peer->uid, peer->process, peer->client);
  if (!written) {
    setup_.programs->refuse(asking.program, asking.request.tag, 0, written.error());
    return settle(entry);
  }
  entry.clean = false;
  entry.owner = peer->uid;
  addHold(entry, *peer, asking.program);
  setup_.log(LogLevel::kInfo, fmt::format("region {} goes to process {} of user {}", entry.id,
                                          peer->process.pid, peer->uid));
  setup_.programs->tell(
      asking.program,
      noticeOf(NoticeKind::kRegion, asking.request.tag, entry.id, entry.epoch, entry.size),
      entry.attached.get());
}

void Regions::addHold(Entry& entry, const Peer& peer, ProgramId program) {
  TP_CHECK_OP(program, !=, 0u);
  Hold& hold = entry.holds[peer.process];
  if (hold.program != 0) held_by_[hold.program].erase(entry.id);
  hold.program = program;
  hold.client = peer.client;
  hold.ended.reset();
  hold.process.reset(-1);
  held_by_[program].insert(entry.id);
}

void Regions::dropHold(Entry& entry, const ProcessId& process) {
  const auto found = entry.holds.find(process);
  if (found == entry.holds.end()) return;
  if (const auto held = held_by_.find(found->second.program); held != held_by_.end()) {
    held->second.erase(entry.id);
    if (held->second.empty()) held_by_.erase(held);
  }
  entry.holds.erase(found);
  note(setup_.journal->left(entry.id, process));
  setup_.log(LogLevel::kInfo, fmt::format("process {} has left region {}", process.pid, entry.id));
}

/// A process without a connection gives back when it ends.
void Regions::watchEnd(Entry& entry, const ProcessId& process) {
  const auto ended = [this, id = entry.id, epoch = entry.epoch, process] {
    Entry* now = find(id, epoch);
    if (now == nullptr) return;
    const auto hold = now->holds.find(process);
    if (hold == now->holds.end() || hold->second.program != 0) return;
    dropHold(*now, process);
    settle(*now);
  };
  auto fd = watchProcess(process);
  if (!fd && fd.error().code() == ErrorCode::kNotFound) return setup_.loop->post(ended);
  // It may well be alive: it keeps what it has.
  if (!fd) return warn("watch a process that has", entry.id, fd.error());
  Hold& hold = entry.holds[process];
  hold.program = 0;
  hold.process = std::move(*fd);
  hold.ended = std::make_unique<Trigger>(*setup_.loop, hold.process.get(), EV_READ,
                                         [ended](short) { ended(); });
}

void Regions::reclaim(ProgramId program, const Request& request) {
  const Peer* peer = setup_.programs->find(program);
  if (peer == nullptr) return;
  Entry* entry = find(request.region, request.epoch);
  const auto number = static_cast<unsigned long long>(request.region);
  if (entry == nullptr || entry->holds.empty()) {
    return setup_.programs->refuse(
        program, request.tag, request.region,
        Error::make(ErrorCode::kLost,
                    "region %llu is not this program's any more: what it held is "
                    "lost",
                    number));
  }
  if (entry->owner != peer->uid) {
    return setup_.programs->refuse(
        program, request.tag, request.region,
        Error::make(ErrorCode::kPermission, "region %llu is another user's", number));
  }
  // A child that forked off shares what its parent has.
  if (!entry->holds.contains(peer->process)) {
    const Status written =
        setup_.journal->held(entry->id, entry->epoch, peer->uid, peer->process, peer->client);
    if (!written) {
      return setup_.programs->refuse(program, request.tag, request.region, written.error());
    }
  }
  addHold(*entry, *peer, program);
  setup_.programs->tell(
      program, noticeOf(NoticeKind::kKept, request.tag, entry->id, entry->epoch, entry->size),
      nullptr);
  if (!entry->draining) return;
  const std::string text = drainText(*entry);
  Notice drain = noticeOf(NoticeKind::kDrain, 0, entry->id, entry->epoch, entry->size);
  drain.text = text;
  setup_.programs->tell(program, drain, nullptr);
}

void Regions::reclaimedAll(ProgramId program) {
  const Peer* found = setup_.programs->find(program);
  if (found == nullptr || found->client == kNoName) return;
  const Peer peer = *found;
  std::vector<uint64_t> unknown;
  for (const auto& [id, entry] : entries_) {
    const auto hold = entry.holds.find(peer.process);
    if (hold == entry.holds.end() || hold->second.program != 0) continue;
    if (hold->second.client == peer.client) unknown.push_back(id);
  }
  for (const uint64_t id : unknown) {
    dropHold(entries_.at(id), peer.process);
    settle(id);
  }
}

void Regions::giveBack(ProgramId program, const Request& request) {
  Entry* entry = findHeld(program, request);
  if (entry == nullptr) return;
  dropHold(*entry, setup_.programs->find(program)->process);
  setup_.programs->tell(
      program, noticeOf(NoticeKind::kReturned, request.tag, entry->id, entry->epoch, Bytes()),
      nullptr);
  settle(*entry);
}

void Regions::reportLeft(ProgramId program, const Request& request) {
  Entry* entry = findHeld(program, request);
  if (entry == nullptr || !entry->draining) return;
  const Nanoseconds now = clock_.now();
  if (now < entry->reported + kReportEvery || !reports_.take(now)) return;
  entry->reported = now;
  setup_.link->run(
      Lane::kWork,
      [path = fmt::format("/v1/regions/{}/drain-progress", entry->id),
       body = drainProgress(request, setup_.programs->find(program)->process)](Asker& asker) {
        return asker.post(path, body);
      },
      [](const Result<api::JsonValue>&) {});  // for people to look at: no harm if it is lost
}

/// The connection has ended: forgets what it asked for and had; returns the regions it had.
std::set<uint64_t> Regions::takeHeld(ProgramId program) {
  asking_.erase(program);
  const auto held = held_by_.find(program);
  if (held == held_by_.end()) return {};
  std::set<uint64_t> ids = std::move(held->second);
  held_by_.erase(held);
  return ids;
}

void Regions::programGone(ProgramId program) {
  for (const uint64_t id : takeHeld(program)) {
    Entry& entry = entries_.at(id);
    const auto hold =
        std::find_if(entry.holds.begin(), entry.holds.end(),
                     [program](const auto& one) { return one.second.program == program; });
    if (hold != entry.holds.end()) dropHold(entry, ProcessId(hold->first));
    settle(id);
  }
}

void Regions::programCutOff(ProgramId program) {
  for (const uint64_t id : takeHeld(program)) {
    Entry& entry = entries_.at(id);
    for (auto& [process, hold] : entry.holds) {
      if (hold.program != program) continue;
      hold.program = 0;
      watchEnd(entry, process);
      break;
    }
  }
}

RegionCounts Regions::counts() const {
  RegionCounts counts;
  for (const auto& [id, entry] : entries_) {
    ++counts.regions;
    counts.bytes += entry.size;
    if (entry.draining) ++counts.draining;
    if (!entry.holds.empty()) {
      ++counts.held;
      counts.held_bytes += entry.size;
    } else if (entry.attached && entry.clean) {
      ++counts.ready;
    } else {
      ++counts.dirty;
    }
  }
  return counts;
}

}  // namespace tidepool::agent
