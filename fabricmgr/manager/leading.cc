// SPDX-License-Identifier: Apache-2.0
// The manager's place among those that its fabric has had and may have beside it: its term, and
// what becomes of it when devices obey another one. See model/identity.h.
#include <fmt/format.h>
#include <poll.h>

#include <utility>

#include "fabricmgr/manager/impl.h"

namespace tidepool::fabric {
namespace {

/// Terms of one start: if each time another manager is found to have outbid it, people have to
/// decide.
constexpr int kBids = 8;
constexpr int kPauseMilliseconds = 500;

}  // namespace

Status Manager::Impl::beginTerm(Term known) {
  const auto standing = store->beginTerm(known);
  if (!standing) return tl::unexpected(standing.error());
  if (store->elects()) leadership.elected();
  outbids = standing->outbids || options.take_over == TakeOver::kYes;
  leadership.begin({standing->fabric, standing->term, newIncarnation(), options.take_over});
  if (!outbids && standing->superseded_by != Term()) leadership.supersede(standing->superseded_by);
  return {};
}

Result<Manager::Impl::Opened> Manager::Impl::openAll(const std::vector<Device>& devices) {
  if (leadership.superseded()) return Opened();  // by what the store says
  const Nanoseconds until = options.clock->now() + options.patience;
  for (int bids = 0;;) {
    Opened opened;
    for (const Device& device : devices) {
      if (auto driver = drivers.open(device)) opened.emplace(device.id, std::move(*driver));
    }
    const Term other = leadership.supersededBy();
    if (other == Term() && outbids) TP_TRY(store->tookOver());
    if (other == Term()) return opened;
    const Leader self = leadership.leader();
    if (other < self.term && options.clock->now() < until) {
      poll(nullptr, 0,
           kPauseMilliseconds);  // its predecessor was alive a moment ago, and may be dead
      leadership.begin(self);
    } else if (other >= self.term && outbids && ++bids < kBids) {
      TP_TRY(beginTerm(other));
    } else {
      TP_TRY(store->noteSuperseded(other));
      return opened;
    }
    (void)drivers.takeTurns();  // nothing has happened to the devices
  }
}

Status Manager::Impl::checkInCharge() const {
  const Term other = leadership.supersededBy();
  if (other == Term()) return store->mayAct();
  return fail(ErrorCode::kConflict,
              "another manager of this fabric (term %llu; this one: %llu) is in charge: stop this "
              "one, or, if this store is the right one, run `fabricmgr serve --take-over`",
              static_cast<unsigned long long>(other.value()),
              static_cast<unsigned long long>(leadership.term().value()));
}

Status Manager::Impl::checkMayChange() const {
  TP_TRY(checkUsable());
  return checkInCharge();
}

void Manager::Impl::saySuperseded() {
  if (!leadership.superseded()) return;
  const Status in_charge = checkInCharge();
  {
    const MutexLock lock(mutex);
    if (std::exchange(superseded_said, true)) return;
  }
  (void)store->noteSuperseded(leadership.supersededBy());  // or the next start finds out anew
  const MutexLock lock(mutex);
  say(Weight::kError,
      fmt::format("{}. Nothing is changed any more, and no lease ends", in_charge.error().text()));
}

void Manager::Impl::letGo(DeviceId id) {
  Device device;
  device.id = id;
  // One that is away, or holds something, stays this fabric's.
  if (auto driver = drivers.of(device)) (void)(*driver)->release();
  drivers.forget(id);
}

Status Manager::mayAct() const { return impl_->store->mayAct(); }

Leader Manager::leader() const {
  if (impl_->followed == nullptr) return impl_->leadership.leader();
  const Standing standing = impl_->followed->standing();
  return {standing.fabric, standing.term, 0, TakeOver::kNo};
}

}  // namespace tidepool::fabric
