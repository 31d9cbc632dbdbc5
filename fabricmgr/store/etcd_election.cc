// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/store/etcd_election.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "fabricmgr/model/identity.h"
#include "fabricmgr/store/etcd_records.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"

namespace tidepool::fabric {
namespace {

const BootClock kClock;
/// Of a lease, for clocks that do not go alike.
constexpr uint64_t kMargin = 8;
/// Renewed so often in its time.
constexpr uint64_t kRenewals = 4;

Nanoseconds shorter(Nanoseconds lease) { return lease - lease / kMargin; }

std::string selfOf(std::string name) {
  EtcdFields fields;
  uint64_t incarnation = newIncarnation();
  fields(name)(incarnation);
  return fields.take();
}

}  // namespace

EtcdElection::EtcdElection(EtcdTarget target, std::string name, Nanoseconds lease)
    : target_(std::move(target)),
      name_(std::move(name)),
      self_(selfOf(name_)),
      length_(lease),
      client_(target_, std::min(EtcdClient::kPatience, lease / 2)),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  TP_CHECK_OP(stop_.get(), >=, 0);
}

EtcdElection::~EtcdElection() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!write(stop_.get(), &one, sizeof one);
    thread_.join();
  }
  if (lease_ != 0) (void)client_.revoke(lease_);  // or it ends by itself
}

Result<bool> EtcdElection::renew(EtcdClient* client) {
  const Nanoseconds now = kClock.now();
  const auto left = client->keepAlive(lease_);
  if (!left) return tl::unexpected(left.error());
  if (*left == Nanoseconds()) return false;
  if (revision_ != 0) {  // somebody may have dropped the key by hand
    const auto key = client->range({target_.prefix + kLeaderKey, "", 0, 0});
    if (!key) return tl::unexpected(key.error());
    if (key->pairs.empty() || key->pairs.front().created != revision_) return false;
  }
  until_.store((now + shorter(*left)).value(), std::memory_order_release);
  return true;
}

Status EtcdElection::takeLease() {
  if (lease_ != 0) {
    const auto renewed = renew(&client_);
    if (!renewed) return tl::unexpected(renewed.error());
    if (*renewed) return {};
  }
  const Nanoseconds now = kClock.now();
  const auto lease = client_.grantLease(length_);
  if (!lease) return tl::unexpected(lease.error());
  lease_ = lease->id;
  until_.store((now + shorter(lease->length)).value(), std::memory_order_release);
  return {};
}

Result<std::optional<std::string>> EtcdElection::campaign() {
  TP_CHECK_OP(revision_, ==, 0u);
  const std::string key = target_.prefix + kLeaderKey;
  auto found = client_.range({key, "", 0, 0});
  if (!found) return tl::unexpected(found.error());
  if (found->pairs.empty()) {
    TP_TRY(takeLease());
    EtcdTransaction lead;
    lead.ifCreated(key, 0);
    lead.put(key, self_, lease_);
    lead.otherwiseGet({key, "", 0, 0});
    auto outcome = client_.transact(lead.body());
    if (!outcome) return tl::unexpected(outcome.error());
    if (outcome->happened) {
      begin(outcome->revision);
      return std::optional<std::string>();
    }
    if (!outcome->found.empty()) found = std::move(outcome->found.front());
  }
  if (found->pairs.empty()) return std::optional<std::string>("");
  const EtcdPair& leader = found->pairs.front();
  if (leader.value == self_) {  // made by a try whose answer was lost
    const auto renewed = renew(&client_);
    if (!renewed) return tl::unexpected(renewed.error());
    if (!*renewed) return std::optional<std::string>("");
    begin(leader.created);
    return std::optional<std::string>();
  }
  std::string name;
  EtcdFields fields(leader.value);
  fields(name);
  return std::optional<std::string>(name);
}

void EtcdElection::begin(uint64_t revision) {
  revision_ = revision;
  target_ = client_.target();  // who has just won has no time for a member that does not answer
  thread_ = std::thread([this] { keepAlive(); });
}

void EtcdElection::keepAlive() {
  const Nanoseconds every = length_ / kRenewals;
  EtcdClient client(target_, every);
  pollfd waiting = {stop_.get(), POLLIN, 0};
  while (!lost() && poll(&waiting, 1, static_cast<int>(every.value() / 1'000'000)) == 0) {
    const auto renewed = renew(&client);
    if (renewed && !*renewed) lose();
  }
}

Status EtcdElection::mayAct() const {
  if (revision_ == 0 || lost()) {
    return fail(ErrorCode::kConflict,
                "this manager does not lead any more: another one of its fabric does, or will");
  }
  if (kClock.now().value() < until_.load(std::memory_order_acquire)) return {};
  return fail(ErrorCode::kUnreachable,
              "%.120s has not answered for so long that another manager may lead: see that most of "
              "its members run and can be reached, and ask again",
              target_.url().c_str());
}

}  // namespace tidepool::fabric
