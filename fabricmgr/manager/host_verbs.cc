// SPDX-License-Identifier: Apache-2.0
// Verbs on hosts and their leases. Thread-safe, see manager.h.
#include <fmt/format.h>

#include <array>
#include <map>
#include <set>

#include "fabricmgr/manager/impl.h"
#include "fabricmgr/manager/step.h"

namespace tidepool::fabric {
namespace {

constexpr char kExpiryResumed[] = "expiry-resumed";  // an event
constexpr Nanoseconds kSecond(1'000'000'000);
constexpr Nanoseconds kDefaultLease = kSecond * 30;
constexpr Nanoseconds kLongestLease = kSecond * 86'400;

RemovalReport whoIsHurt(Manager::Impl& impl, const HostEntry& entry) TP_REQUIRES(impl.mutex) {
  constexpr size_t kShown = 100;
  RemovalReport report;
  report.regions = entry.regions.size();
  report.hosts = report.regions == 0 ? 0 : 1;
  report.bytes = entry.held;
  for (const RegionId id : entry.regions) {
    if (report.hurt.size() == kShown) break;
    const Region& region = impl.state.findRegion(id)->region;
    report.hurt.push_back({id, entry.host.name, region.state, region.size});
  }
  report.safe = report.regions == 0;
  report.text = report.safe ? "it has no regions"
                            : "it has " + std::to_string(report.regions) + " regions of " +
                                  std::to_string(report.bytes.value()) + " bytes";
  return report;
}

/// A verb of one step on a host that is there. `body` gets the manager, the step and the host.
template <typename Body>
Result<Answer> onHost(Manager::Impl& manager, const Caller& caller, const Request& request,
                      const std::string& name, Body body) {
  const auto run = [&](Manager::Impl& impl, Step& step) TP_REQUIRES(impl.mutex) -> Result<Answer> {
    HostEntry* entry = impl.state.findHost(name);
    if (entry == nullptr) return noSuch("host", name);
    TP_TRY(checkExpected(caller, entry->host.modified));
    return body.operator()(impl, step, entry);
  };
  return manager.perform(caller, request, Subject::kHost, run);
}

Status mayResume(const HostEntry& entry) {
  if (entry.host.state != HostState::kFenced || entry.regions.empty()) return {};
  return fail(ErrorCode::kRefused, "host %s is fenced, and %zu regions of it are not erased yet",
              entry.host.name.c_str(), entry.regions.size());
}

/// mayResume() has allowed it.
void resume(Manager::Impl& impl, Step& step, const HostEntry& entry) TP_REQUIRES(impl.mutex) {
  const HostId id = entry.host.id;
  for (const RegionId region : std::set(entry.regions)) {
    RegionEntry* held = impl.state.findRegion(region);
    const bool own = held->operation != OperationId();  // it is drained for itself, too
    if (held->region.state == RegionState::kDraining && !own) {
      step.move(held, RegionEvent::kResume);
    }
  }
  impl.finish(&step, entry.operation, OperationState::kCancelled, "the host was resumed");
  Host host = entry.host;
  host.state = HostState::kActive;
  host.modified = step.index();
  step.put(host);
  step.event(Subject::kHost, id.value(), id, "active");
  impl.renew(host);
}

/// What there is to do about a host that is one of many.
ResumedHost toResume(Manager::Impl& impl, const Caller& caller, const HostEntry& entry)
    TP_REQUIRES(impl.mutex) {
  ResumedHost one{entry.host.id, entry.host.name, Resumed::kUnchanged, ""};
  const bool active = entry.host.state == HostState::kActive;
  if (active && !(impl.expiry_held && impl.isSilent(entry))) return one;
  Status allowed = checkExpected(caller, entry.host.modified);
  if (allowed) allowed = mayResume(entry);
  one.outcome = active ? Resumed::kRenewed : Resumed::kResumed;
  if (allowed) return one;
  one.outcome = Resumed::kRefused;
  one.text = allowed.error().text();
  return one;
}

void resumeOneOfMany(Manager::Impl& impl, Step& step, const ResumedHost& one)
    TP_REQUIRES(impl.mutex) {
  const HostEntry& entry = *impl.state.findHost(one.name);
  if (one.outcome == Resumed::kResumed) resume(impl, step, entry);
  if (one.outcome != Resumed::kRenewed) return;
  impl.renew(entry.host);
  step.event(Subject::kHost, one.id.value(), one.id, kExpiryResumed);
}

std::string countsOf(const std::vector<ResumedHost>& hosts) {
  std::array<uint64_t, 4> counts{};
  for (const ResumedHost& one : hosts) ++counts[static_cast<size_t>(one.outcome)];
  return fmt::format("{} unchanged, {} resumed, {} renewed, {} refused", counts[0], counts[1],
                     counts[2], counts[3]);
}

/// What a request with the same key did at `index`, by the events of that.
Result<ResumedHosts> toldAgain(Manager::Impl& impl, const Selector& selector, Index index) {
  const auto events = impl.store->eventsAfter(Index(index.value() - 1), 1, HostId());
  if (!events) {
    return fail(ErrorCode::kConflict, "it was done at index %llu, and what it did is not kept: %s",
                static_cast<unsigned long long>(index.value()), events.error().text());
  }
  std::map<HostId, Resumed> done;
  for (const Event& event : *events) {
    if (event.subject != Subject::kHost) continue;
    done[HostId(event.id)] = event.what == kExpiryResumed ? Resumed::kRenewed : Resumed::kResumed;
  }
  return shown(impl, [&](Manager::Impl& inner) TP_REQUIRES(inner.mutex) -> Result<ResumedHosts> {
    ResumedHosts all{index, {}};
    for (const auto& [id, entry] : inner.state.hosts()) {
      ResumedHost one{id, entry.host.name, Resumed::kUnchanged, ""};
      if (const auto found = done.find(id); found != done.end()) {
        one.outcome = found->second;
      } else if (!selector.matches(entry.host.labels)) {
        continue;
      } else if (entry.host.state != HostState::kActive) {
        one.outcome = Resumed::kRefused;
        one.text = fmt::format(
            "host {} is {}, and the request with this key was carried out "
            "before: use a new one",
            one.name, nameOf(entry.host.state));
      }
      all.hosts.push_back(std::move(one));
    }
    return all;
  });
}

}  // namespace

std::string_view nameOf(Resumed value) {
  static constexpr std::string_view kNames[] = {"unchanged", "resumed", "renewed", "refused"};
  return kNames[static_cast<size_t>(value)];
}

Result<Answer> Manager::addHost(const Caller& caller, const HostSpec& spec) {
  TP_TRY(checkName("host", spec.name));
  if (!spec.domain.empty()) TP_TRY(checkName("domain", spec.domain));
  const Nanoseconds lease = spec.lease == Nanoseconds() ? kDefaultLease : spec.lease;
  if (lease < kSecond || lease > kLongestLease) {
    return fail(ErrorCode::kInvalidArgument, "a lease is 1 second to 1 day long");
  }
  const Request request("host.add", spec.name, spec.domain, lease.value());
  return impl_->perform(
      caller, request, Subject::kHost,
      [&](Impl& impl, Step& step) TP_REQUIRES(impl.mutex) -> Result<Answer> {
        if (impl.state.findHost(spec.name) != nullptr) {
          return fail(ErrorCode::kConflict, "there is a host %s already", spec.name.c_str());
        }
        if (isDryRun(caller)) return Answer();
        const HostId id(step.index().value());
        const Host host{id, spec.name, spec.domain, HostState::kActive, lease, step.index(), {}};
        step.put(host);
        step.event(Subject::kHost, id.value(), id, "added");
        impl.renew(host);
        return Answer{{}, id.value(), {}};
      });
}

Result<Answer> Manager::drainHost(const Caller& caller, const std::string& name,
                                  Nanoseconds deadline) {
  return onHost(
      *impl_, caller, Request("host.drain", name, deadline.value()), name,
      [&](Impl& impl, Step& step, HostEntry* entry) TP_REQUIRES(impl.mutex) -> Result<Answer> {
        if (entry->host.state == HostState::kFenced) {
          return fail(ErrorCode::kRefused, "host %s is fenced: what it had is being taken anyway",
                      name.c_str());
        }
        if (isDryRun(caller)) return Answer();
        const HostId id = entry->host.id;
        impl.finish(&step, entry->operation, OperationState::kCancelled, "drained anew");
        Host host = entry->host;
        host.state = HostState::kDraining;
        host.modified = step.index();
        step.put(host);
        step.event(Subject::kHost, id.value(), id, "draining");
        if (entry->regions.empty()) return Answer{{}, id.value(), {}};
        Operation operation = impl.newOperation(step, OperationKind::kHostDrain, caller.actor);
        operation.host = id;
        operation.total = entry->held;
        impl.setDeadline(&operation, deadline);
        step.put(operation);
        for (const RegionId region : std::set(entry->regions)) {
          RegionEntry* held = impl.state.findRegion(region);
          if (held->region.state == RegionState::kAttached) step.move(held, RegionEvent::kDrain);
        }
        return Answer{{}, id.value(), operation.id};
      });
}

Result<Answer> Manager::resumeHost(const Caller& caller, const std::string& name) {
  return onHost(*impl_, caller, Request("host.resume", name), name,
                [&](Impl& impl, Step& step, HostEntry* entry)
                    TP_REQUIRES(impl.mutex) -> Result<Answer> {
                      TP_TRY(mayResume(*entry));
                      if (isDryRun(caller)) return Answer();
                      resume(impl, step, *entry);
                      return Answer{{}, entry->host.id.value(), {}};
                    });
}

Result<ResumedHosts> Manager::resumeHosts(const Caller& caller, const Selector& selector) {
  ResumedHosts all;
  bool again = true;  // the key is known: nothing is run
  const auto run = [&](Impl& impl, Step& step) TP_REQUIRES(impl.mutex) -> Result<Answer> {
    again = false;
    for (const auto& [id, entry] : impl.state.hosts()) {
      if (selector.matches(entry.host.labels)) all.hosts.push_back(toResume(impl, caller, entry));
    }
    if (all.hosts.empty() && !selector.isEverything()) {
      return fail(ErrorCode::kNotFound, "no host has such labels: `fabricmgr host list -o wide`");
    }
    if (isDryRun(caller)) return Answer();
    for (const ResumedHost& one : all.hosts) resumeOneOfMany(impl, step, one);
    step.outcome(countsOf(all.hosts));
    return Answer();
  };
  const auto answer =
      impl_->perform(caller, Request("host.resume-many", selector.text()), Subject::kHost, run);
  if (!answer) return tl::unexpected(answer.error());
  if (again) return toldAgain(*impl_, selector, answer->index);
  all.index = answer->index;
  return all;
}

Result<Answer> Manager::fenceHost(const Caller& caller, const std::string& name, Force force) {
  return onHost(
      *impl_, caller, Request("host.fence", name, static_cast<uint64_t>(force)), name,
      [&](Impl& impl, Step& step, HostEntry* entry) TP_REQUIRES(impl.mutex) -> Result<Answer> {
        const Nanoseconds left = impl.leaseLeft(entry->host.id);
        if (force == Force::kNo && !entry->regions.empty() && left > Nanoseconds()) {
          return fail(
              ErrorCode::kRefused,
              "host %s has %zu regions and was heard of lately: drain it, or fence it by force",
              name.c_str(), entry->regions.size());
        }
        if (isDryRun(caller)) return Answer();
        impl.fenceAll(&step, entry, caller.actor);
        return Answer{{}, entry->host.id.value(), entry->operation};
      });
}

Result<Answer> Manager::removeHost(const Caller& caller, const std::string& name) {
  return onHost(
      *impl_, caller, Request("host.remove", name), name,
      [&](Impl& impl, Step& step, HostEntry* entry) TP_REQUIRES(impl.mutex) -> Result<Answer> {
        if (!entry->regions.empty()) {
          return fail(ErrorCode::kRefused, "host %s: %s: drain or fence it first", name.c_str(),
                      whoIsHurt(impl, *entry).text.c_str());
        }
        for (const auto& [id, operation] : impl.state.operations()) {
          if (operation.kind != OperationKind::kTransfer || operation.host != entry->host.id)
            continue;
          return fail(ErrorCode::kRefused, "region %llu is being transferred to host %s",
                      static_cast<unsigned long long>(operation.region.value()), name.c_str());
        }
        if (isDryRun(caller)) return Answer();
        const HostId id = entry->host.id;
        impl.finish(&step, entry->operation, OperationState::kCancelled, "the host was removed");
        step.put(DropHost{id});
        step.event(Subject::kHost, id.value(), id, "removed");
        impl.lease_until.erase(id);
        return Answer{{}, id.value(), {}};
      });
}

Result<RemovalReport> Manager::checkRemoveHost(const std::string& name) {
  return shown(*impl_, [&](Impl& impl) TP_REQUIRES(impl.mutex) -> Result<RemovalReport> {
    const HostEntry* entry = impl.state.findHost(name);
    if (entry == nullptr) return noSuch("host", name);
    return whoIsHurt(impl, *entry);
  });
}

Result<Manager::Renewal> Manager::renewLease(const std::string& host) {
  TP_TRY(impl_->checkInCharge());
  MutexLock lock(impl_->mutex);
  // Renewed even while the store has failed: hosts are not to lose their memory over that.
  const HostEntry* entry = impl_->state.findHost(host);
  if (entry == nullptr) return noSuch("host", host);
  if (entry->host.state == HostState::kFenced) {
    return fail(ErrorCode::kStaleEpoch,
                "host %s is fenced: what it had is taken from it; an operator may resume it",
                host.c_str());
  }
  impl_->renew(entry->host);
  return Renewal{entry->host.lease, entry->touched};
}

}  // namespace tidepool::fabric
