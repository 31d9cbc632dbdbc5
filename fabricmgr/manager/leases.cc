// SPDX-License-Identifier: Apache-2.0
// Leases that run out, and the brake for when too many do at once: then it is more likely that the
// manager, or its network, is cut off than that all these hosts have died. See manager.h.
#include <fmt/format.h>

#include <algorithm>

#include "fabricmgr/manager/impl.h"
#include "fabricmgr/manager/step.h"

namespace tidepool::fabric {
namespace {

/// Who was not heard of. A heartbeat comes every third of a lease: who has missed one, for half of
/// it, is silent; hosts that are cut off together do not all run out in the same tick.
struct Silence {
  uint64_t holding = 0;  // hosts that have something to lose
  std::vector<HostId> silent, over;
};

Silence lookAround(Manager::Impl& impl) TP_REQUIRES(impl.mutex) {
  Silence found;
  for (const auto& [id, entry] : impl.state.hosts()) {
    if (entry.host.state == HostState::kFenced || entry.regions.empty()) continue;
    ++found.holding;
    if (impl.isSilent(entry)) found.silent.push_back(id);
    if (impl.leaseLeft(id) == Nanoseconds()) found.over.push_back(id);
  }
  return found;
}

bool tooMany(const Silence& silence, unsigned hold_percent) {
  const uint64_t silent = silence.silent.size();
  return silent >= 2 && silent * 100 > silence.holding * hold_percent;
}

bool hasToBeTaken(Manager::Impl& impl, const HostEntry& host) TP_REQUIRES(impl.mutex) {
  return std::any_of(host.regions.begin(), host.regions.end(),
                     [&impl](RegionId region) TP_REQUIRES(impl.mutex) {
                       const RegionEntry* entry = impl.state.findRegion(region);
                       const RegionState now = entry->region.state;
                       return !entry->busy && (holdsData(now) || now == RegionState::kLost);
                     });
}

void tellAll(Step* step, const std::vector<HostId>& hosts, const char* what) {
  for (const HostId id : hosts) step->event(Subject::kHost, id.value(), id, what);
}

}  // namespace

bool Manager::Impl::isSilent(const HostEntry& entry) {
  return entry.host.state != HostState::kFenced && !entry.regions.empty() &&
         leaseLeft(entry.host.id) < entry.host.lease / 2;
}

void Manager::Impl::holdExpiry() {
  const Silence silence = lookAround(*this);
  if (tooMany(silence, options.hold_percent)) {
    if (expiry_held || silence.over.empty()) return;
    expiry_held = true;
    Step step(*this, "manager", "lease.hold", Subject::kHost);
    step.outcome("too many hosts are silent at once: nobody is cut off");
    tellAll(&step, silence.over, "expiry-held");
    step.commit(*this);
    say(Weight::kError,
        fmt::format("{} of {} hosts with memory are silent, and leases run out: nobody is cut off. "
                    "Is this machine's network in order? `fabricmgr lease resume` gives them a new "
                    "lease, `fabricmgr lease expire` takes their memory from those that are over",
                    silence.silent.size(), silence.holding));
  } else if (expiry_held) {
    Step step(*this, "manager", "lease.resume", Subject::kHost);
    resumeExpiry(&step);
    step.outcome("few hosts are silent now");
    step.commit(*this);
  }
}

void Manager::Impl::resumeExpiry(Step* step) {
  expiry_held = false;
  const Silence silence = lookAround(*this);
  for (const HostId id : silence.silent) renew(state.findHost(id)->host);
  tellAll(step, silence.silent, "expiry-resumed");
  say(Weight::kWarning,
      fmt::format("leases run out again; {} silent hosts have a new one", silence.silent.size()));
}

void Manager::Impl::expireLeases() {
  Index index;
  {
    MutexLock lock(mutex);
    if (broken) return;
    const Index before = last_index;
    holdExpiry();
    takeFromSilent("manager");
    if (last_index != before) index = last_index;
  }
  (void)settle(index);
}

void Manager::Impl::takeFromSilent(const std::string& actor) {
  for (const auto& [id, ignored] : state.hosts()) {
    HostEntry* host = state.findHost(id);
    const bool fenced = host->host.state == HostState::kFenced;
    if (!fenced && (expiry_held || leaseLeft(id) > Nanoseconds())) continue;
    if (!hasToBeTaken(*this, *host)) continue;
    if (!fenced) {
      ++expired;
      say(Weight::kWarning, fmt::format("host {} was not heard of for its lease of {} s",
                                        host->host.name, host->host.lease.value() / 1'000'000'000));
    }
    Step step(*this, actor, "host.expire", Subject::kHost);
    step.about(id.value());
    fenceAll(&step, host, actor);
    step.commit(*this);
  }
}

Result<Answer> Manager::resumeLeases(const Caller& caller) {
  return impl_->perform(caller, Request("lease.resume"), Subject::kHost,
                        [&](Impl& impl, Step& step) TP_REQUIRES(impl.mutex) -> Result<Answer> {
                          if (isDryRun(caller) || !impl.expiry_held) return Answer();
                          impl.resumeExpiry(&step);
                          return Answer();
                        });
}

Result<Answer> Manager::expireLeases(const Caller& caller) {
  bool confirmed = false;
  auto answer =
      impl_->perform(caller, Request("lease.expire"), Subject::kHost,
                     [&](Impl& impl, Step& step) TP_REQUIRES(impl.mutex) -> Result<Answer> {
                       if (isDryRun(caller) || !impl.expiry_held) return Answer();
                       tellAll(&step, lookAround(impl).over, "expiry-confirmed");
                       confirmed = true;
                       return Answer();
                     });
  if (!answer || !confirmed) return answer;
  {
    MutexLock lock(impl_->mutex);
    TP_TRY(impl_->checkMayChange());
    impl_->expiry_held = false;
    impl_->takeFromSilent(caller.actor);
    answer->index = impl_->last_index;
  }
  TP_TRY(impl_->settle(answer->index));
  return answer;
}

}  // namespace tidepool::fabric
