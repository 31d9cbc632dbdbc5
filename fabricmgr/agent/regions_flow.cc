// SPDX-License-Identifier: Apache-2.0
// Regions, towards the manager and devices: lists, attaching, erasing, releasing, drains and
// revocations.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fabricmgr/agent/regions.h"

namespace tidepool::agent {
namespace {

using agent_wire::Notice;
using agent_wire::NoticeKind;
using fabric::RegionState;

std::string pathOf(uint64_t region, const char* what) {
  return fmt::format("/v1/regions/{}/{}", region, what);
}

/// Why a region in this state is not its host's any more.
std::string whyGone(const SeenRegion& seen) {
  if (seen.state == RegionState::kLost) {
    return fmt::format("region {} is lost: a device that held it is gone", seen.id);
  }
  return fmt::format("region {} was taken from this host", seen.id);
}

}  // namespace

void Regions::tellHolders(const Entry& entry, NoticeKind kind, Bytes size, ErrorCode status,
                          std::string_view text) {
  Notice notice;
  notice.kind = kind;
  notice.region = entry.id;
  notice.epoch = entry.epoch;
  notice.size = size;
  notice.status = static_cast<uint16_t>(status);
  notice.text = text;
  for (const auto& [process, hold] : entry.holds) {
    if (hold.program != 0) setup_.programs->tell(hold.program, notice, nullptr);
  }
}

void Regions::settle(uint64_t id) {
  if (const auto found = entries_.find(id); found != entries_.end()) settle(found->second);
}

void Regions::settle(Entry& entry) {
  // What the journal alone knows may be somebody else's by now.
  if (entry.work != Work::kNone || entry.waiting || !entry.confirmed) return;
  if (!entry.holds.empty()) {
    // Nothing is to be done with it, but where it lies has to be known for checkGrants().
    if (!entry.access) attach(entry);
    return;
  }
  if (entry.draining || (entry.on_demand && !isAwaited(entry))) return release(entry);
  if (!entry.attached) return attach(entry);
  // What nobody here ever had may have been handed over with its bytes: those are left alone until
  // a program asks for room.
  if (!entry.clean && entry.owner) erase(entry);
}

void Regions::attach(Entry& entry) {
  entry.work = Work::kAttaching;
  using Outcome = Result<std::pair<RegionAccess, Attached>>;
  setup_.link->run(
      Lane::kWork,
      [this, id = entry.id](Asker& asker) -> Outcome {
        const auto answer = asker.get(pathOf(id, "access"));
        if (!answer) return tl::unexpected(answer.error());
        auto access = accessIn(*answer);
        if (!access) return tl::unexpected(access.error());
        auto attached = attachers_.attach(*access);
        if (!attached) return tl::unexpected(attached.error());
        return std::pair(std::move(*access), std::move(*attached));
      },
      [this, id = entry.id, epoch = entry.epoch](Outcome outcome) {
        attachDone(id, epoch, std::move(outcome));
      });
}

void Regions::attachDone(uint64_t id, Epoch epoch,
                         Result<std::pair<RegionAccess, Attached>> outcome) {
  Entry* entry = find(id, epoch);
  if (entry == nullptr || entry->work != Work::kAttaching) return;
  entry->work = Work::kNone;
  if (!outcome) {
    warn("attach", id, outcome.error());
    refuseWaiting(*entry, outcome.error());
    // A region on demand that cannot be used is given back; one that stands waits for retry().
    const bool on_demand = entry->on_demand && !isAwaited(*entry);
    if (entry->holds.empty() && (on_demand || entry->draining)) settle(*entry);
    return;
  }
  auto& [access, attached] = *outcome;
  if (entry->epoch != Epoch() && access.epoch != entry->epoch) {
    // It was taken away and given again since the list: the next one says so.
    failed_ = true;
    if (entry->waiting) decide(*std::exchange(entry->waiting, std::nullopt), Listed::kNo);
    return setup_.relist();
  }
  entry->epoch = access.epoch;
  entry->size = access.size;
  entry->access = std::move(access);
  entry->attached = std::make_shared<const Attached>(std::move(attached));
  if (!entry->waiting) return settle(*entry);
  if (!entry->attached->fits(entry->waiting->request.want)) {
    decide(*std::exchange(entry->waiting, std::nullopt), Listed::kYes);
    return settle(id);
  }
  return entry->clean ? handOut(*entry) : erase(*entry);
}

void Regions::erase(Entry& entry) {
  entry.work = Work::kErasing;
  setup_.link->run(
      Lane::kWork,
      [this, access = *entry.access](Asker&) { return attachers_.erase(access, *setup_.lease); },
      [this, id = entry.id, epoch = entry.epoch](const Status& erased) {
        Entry* now = find(id, epoch);
        if (now == nullptr || now->work != Work::kErasing) return;
        now->work = Work::kNone;
        if (!erased) {
          warn("erase", id, erased.error());
          refuseWaiting(*now, erased.error());
          if (now->draining) settle(*now);
          return;
        }
        now->clean = true;
        setup_.log(LogLevel::kInfo,
                   fmt::format("region {}: {} bytes erased", id, now->size.value()));
        if (now->owner) note(setup_.journal->clean(id, epoch, *now->owner));
        if (now->waiting) return handOut(*now);
        settle(*now);
      });
}

std::set<std::string> Regions::devicesBut(uint64_t region) const {
  std::set<std::string> addresses;
  for (const auto& [id, entry] : entries_) {
    if (id == region || !entry.access) continue;
    for (const AccessPart& part : entry.access->parts) addresses.insert(part.address);
  }
  return addresses;
}

void Regions::release(Entry& entry) {
  entry.work = Work::kReleasing;
  entry.attached.reset();  // nothing of it is open here while it is detached
  using Answer = Result<api::JsonValue>;
  setup_.link->run(
      Lane::kWork,
      [this, id = entry.id, access = entry.access,
       kept = devicesBut(entry.id)](Asker& asker) mutable -> Answer {
        if (!access) {  // of an agent that was killed before this one
          const auto answer = asker.get(pathOf(id, "access"));
          auto parsed = answer ? accessIn(*answer) : tl::unexpected(answer.error());
          if (parsed) access = std::move(*parsed);
          if (!parsed && parsed.error().code() == ErrorCode::kUnreachable) {
            return tl::unexpected(parsed.error());
          }
        }
        if (access) {
          const Status detached = attachers_.detach(*access, kept);
          if (!detached) {
            return fail(ErrorCode::kConflict, "it is not detached: %s", detached.error().text());
          }
        }
        return asker.post(pathOf(id, "release"), "{}");
      },
      [this, id = entry.id](const Result<api::JsonValue>& answer) {
        const auto found = entries_.find(id);
        if (found == entries_.end() || found->second.work != Work::kReleasing) return;
        found->second.work = Work::kNone;
        const ErrorCode code = answer ? ErrorCode() : answer.error().code();
        // Refused or not found means that it is on its way already.
        const bool over = answer || code == ErrorCode::kNotFound || code == ErrorCode::kRefused ||
                          code == ErrorCode::kPermission;
        if (!over) return warn("give back", id, answer.error());
        setup_.log(LogLevel::kInfo, fmt::format("region {} is given back", id));
        released_[id] = ++moment_;
        note(setup_.journal->gone(id));
        entries_.erase(found);
      });
}

void Regions::lost(uint64_t id, ErrorCode code, const std::string& why) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  tellHolders(entry, NoticeKind::kGone, Bytes(), code, why);
  if (!entry.holds.empty()) setup_.log(LogLevel::kWarning, why + ": its programs are told");
  for (const auto& [process, hold] : entry.holds) {
    const auto held = held_by_.find(hold.program);
    if (held == held_by_.end()) continue;
    held->second.erase(id);
    if (held->second.empty()) held_by_.erase(held);
  }
  const auto waiting = entry.waiting;
  if (entry.access) {
    // As far as it can be done: its programs may still have it open.
    setup_.link->run(
        Lane::kWork,
        [this, access = *entry.access, kept = devicesBut(id)](Asker&) {
          return attachers_.detach(access, kept);
        },
        [](const Status&) {});
  }
  entries_.erase(found);
  note(setup_.journal->gone(id));
  if (waiting) decide(*waiting, Listed::kNo);
}

void Regions::fenced(const Error& why) {
  std::vector<uint64_t> ids;
  for (const auto& [id, entry] : entries_) ids.push_back(id);
  for (const uint64_t id : ids) refuseWaiting(entries_.at(id), why);
  for (const uint64_t id : ids) lost(id, ErrorCode::kStaleEpoch, why.text());
  unlisted(why);
}

void Regions::apply(const std::vector<SeenRegion>& list, uint64_t moment) {
  std::set<uint64_t> shown;
  for (const SeenRegion& seen : list) {
    shown.insert(seen.id);
    applyOne(seen, moment);
  }
  std::vector<uint64_t> absent;
  for (const auto& [id, entry] : entries_) {
    if (!shown.contains(id) && entry.since <= moment) absent.push_back(id);
  }
  for (const uint64_t id : absent) {
    lost(id, ErrorCode::kLost, fmt::format("region {} is not this host's any more", id));
  }
  std::erase_if(released_, [moment](const auto& one) { return one.second <= moment; });
  std::vector<Asking> due;
  std::erase_if(unlisted_, [&](const Asking& asking) {
    if (asking.moment <= moment) due.push_back(asking);
    return asking.moment <= moment;
  });
  for (const Asking& asking : due) decide(asking, Listed::kYes);
  if (!unlisted_.empty()) setup_.relist();
}

void Regions::applyOne(const SeenRegion& seen, uint64_t moment) {
  const bool usable = fabric::holdsData(seen.state);
  const bool on_demand = seen.label == kOnDemandLabel;
  if (const auto back = released_.find(seen.id); back != released_.end() && moment < back->second) {
    return;
  }
  auto found = entries_.find(seen.id);
  if (found != entries_.end()) {
    Entry& entry = found->second;
    if (entry.since > moment || entry.work == Work::kReleasing) return;
    if (!usable || (entry.epoch != seen.epoch && entry.epoch != Epoch())) {
      lost(seen.id, usable ? ErrorCode::kStaleEpoch : ErrorCode::kLost, whyGone(seen));
      found = entries_.end();
    }
  }
  // A lost region is an operator's to look at, unless a program's agent made it.
  const bool wreck = seen.state == RegionState::kLost && on_demand;
  if (found == entries_.end()) {
    // One that this agent has asked for just now is not known to be its own until the answer comes.
    const bool asked_for = on_demand && assigning_ > 0 && seen.replaces == 0;
    if ((!usable && !wreck) || asked_for) return;
    found = entries_.try_emplace(seen.id).first;
    found->second.id = seen.id;
    found->second.epoch = seen.epoch;
    found->second.since = moment;
  }
  Entry& entry = found->second;
  entry.confirmed = true;
  entry.on_demand = on_demand;
  entry.replaces = seen.replaces;
  takeSize(entry, seen.size);
  takeDraining(entry, seen);
  settle(seen.id);
}

/// Operators may make a region larger or smaller.
void Regions::takeSize(Entry& entry, Bytes size) {
  if (entry.size == size) return;
  const bool known = entry.size != Bytes();
  if (known && size < entry.size && !entry.holds.empty()) {
    tellHolders(entry, NoticeKind::kGone, size, ErrorCode::kLost,
                fmt::format("region {} was made smaller by an operator", entry.id));
  }
  entry.size = size;
  if (!known) return;
  if (entry.work == Work::kAttaching || entry.work == Work::kErasing) {
    // What is being prepared is of the old size.
    entry.work = Work::kNone;
  }
  entry.attached.reset();
  entry.access.reset();
  entry.clean = false;
  if (entry.waiting) decide(*std::exchange(entry.waiting, std::nullopt), Listed::kYes);
}

std::string Regions::drainText(const Entry& entry) const {
  std::string text = fmt::format("region {} is to be moved off and given back", entry.id);
  if (entry.drain_until == Nanoseconds()) return text;
  const Nanoseconds now = clock_.now();
  const uint64_t left = entry.drain_until > now ? (entry.drain_until - now).value() : 0;
  return text + fmt::format(" within {:.1f} s: then it is taken by force", left / 1e9);
}

void Regions::takeDraining(Entry& entry, const SeenRegion& seen) {
  const bool draining = seen.state == RegionState::kDraining;
  entry.drain_until =
      seen.drain_left == Nanoseconds() ? Nanoseconds() : clock_.now() + seen.drain_left;
  if (entry.draining == draining) return;
  entry.draining = draining;
  const std::string text = draining ? drainText(entry) : "";
  if (draining) setup_.log(LogLevel::kInfo, text);
  tellHolders(entry, draining ? NoticeKind::kDrain : NoticeKind::kResume, entry.size, ErrorCode(),
              text);
  if (draining && entry.waiting) {
    decide(*std::exchange(entry.waiting, std::nullopt), Listed::kYes);
  }
}

void Regions::retry() {
  if (!std::exchange(failed_, false)) return;
  std::vector<uint64_t> ids;
  for (auto& [id, entry] : entries_) {
    ids.push_back(id);
    for (const auto& [process, hold] : entry.holds) {
      if (hold.program == 0 && !hold.ended) watchEnd(entry, process);
    }
  }
  for (const uint64_t id : ids) settle(id);
}

void Regions::checkGrants() {
  for (const auto& [id, entry] : entries_) {
    if (entry.holds.empty() || !entry.access) continue;
    setup_.link->run(
        Lane::kWork, [this, access = *entry.access](Asker&) { return attachers_.granted(access); },
        [this, region = id, epoch = entry.epoch](const Result<bool>& granted) {
          // What cannot be found out changes nothing: the manager may be away for long.
          if (!granted || *granted || find(region, epoch) == nullptr) return;
          lost(region, ErrorCode::kStaleEpoch,
               fmt::format("region {} was taken from this host while its agent could not reach the "
                           "manager",
                           region));
        });
  }
}

}  // namespace tidepool::agent
