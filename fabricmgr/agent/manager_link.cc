// SPDX-License-Identifier: Apache-2.0
// ManagerLink: clients that are used again, and lanes of threads.
#include "fabricmgr/agent/manager_link.h"

#include <ctime>

#include "fabricmgr/error_table.h"
#include "fabricmgr/expiry.h"
#include "runtime/base/check.h"

namespace tidepool::agent {
namespace {

struct LaneSetup {
  unsigned threads;
  client::HttpClient::Manner manner;
};
/// By lane. A heartbeat has to be given up early enough for another one within the lease; a watch
/// waits for events most of the time; lists bring drains, which must not wait for devices; the rest
/// may. Of managers that are of no use the heartbeat alone finds out: thousands of agents that lose
/// theirs in one moment do not all make connections to the others for everything.
constexpr std::array<LaneSetup, kLanes> kSetups = {
    {{1, {5'000, false}}, {1, {40'000, true}}, {1, {20'000, true}}, {4, {60'000, false}}}};

/// Lists go over the heartbeat's connection, if that is free, so that who has found the manager
/// that leads needs no other one to learn what it has: programs do not hear of a lease before.
size_t poolOf(Lane lane) { return static_cast<size_t>(lane == Lane::kList ? Lane::kHeart : lane); }

/// More than programs can make wait: each has a bounded number of requests under way.
constexpr size_t kLongestQueue = 1u << 20;

}  // namespace

Result<api::JsonValue> Asker::answerOf(const client::Reply& reply) {
  const std::string over =
      reply.error.empty() ? "" : expiredAmong(target_.certificate, target_.ca, std::time(nullptr));
  if (!over.empty()) {
    return fail(reply.refused ? ErrorCode::kPermission : ErrorCode::kUnreachable,
                "%.200s: renew it", over.c_str());
  }
  // What it says in words comes first: there may be room for one line only.
  if (reply.refused && reply.of_certificates) {
    return fail(ErrorCode::kPermission, "%.200s", reply.error.c_str());
  }
  if (reply.refused) {
    return fail(ErrorCode::kPermission,
                "it does not accept the certificate (revoked, expired, or of another authority): "
                "%.150s",
                reply.error.c_str());
  }
  if (!reply.error.empty()) {
    return fail(reply.timed_out ? ErrorCode::kTimedOut : ErrorCode::kUnreachable,
                "no answer from the fabric manager: %.180s", reply.error.c_str());
  }
  if (const Status ours = pin_.check(reply); !ours) {
    client_.passOver();
    return tl::unexpected(ours.error());
  }
  if (reply.body.empty() && reply.status / 100 == 2) return api::JsonValue();
  auto body = api::parseJson(reply.body);
  if (!body) {
    return fail(ErrorCode::kCorrupt, "the fabric manager's answer (%d) is not JSON: %.120s",
                reply.status, body.error().detail.c_str());
  }
  if (reply.status / 100 == 2) return std::move(*body);
  const api::JsonValue* code = body->find("code");
  const ErrorCode known =
      code == nullptr ? ErrorCode::kInternal : rowOf(std::string_view(code->string)).code;
  return fail(known, "%.200s", body->text("detail").c_str());
}

Result<api::JsonValue> Asker::get(const std::string& path) { return answerOf(client_.get(path)); }

Result<api::JsonValue> Asker::post(const std::string& path, const std::string& body) {
  return answerOf(client_.post(path, body, {}));
}

ManagerLink::ManagerLink(EventLoop& loop, FabricPin& pin, client::Target target)
    : loop_(loop), pin_(pin), target_(std::move(target)) {
  target_.cancelled = &cancelled_;
  target_.place = std::make_shared<std::atomic<size_t>>(0);
  keepClient(Lane::kWork, takeClient(Lane::kWork));  // throws here, if at all
  for (size_t i = 0; i < kLanes; ++i) {
    lanes_[i] = std::make_unique<api::WorkLane>(kSetups[i].threads, kLongestQueue);
  }
}

ManagerLink::~ManagerLink() {
  cancelled_.store(true, std::memory_order_relaxed);
  for (auto& lane : lanes_) lane.reset();
}

void ManagerLink::push(Lane lane, std::function<void()> work) {
  TP_CHECK(lanes_[static_cast<size_t>(lane)]->push(std::move(work)));
}

std::unique_ptr<client::HttpClient> ManagerLink::takeClient(Lane lane) {
  std::unique_ptr<client::HttpClient> client;
  {
    const MutexLock lock(mutex_);
    if (Clients& idle = idle_[poolOf(lane)]; !idle.empty()) {
      client = std::move(idle.back());
      idle.pop_back();
    }
  }
  if (!client) client = std::make_unique<client::HttpClient>(target_);
  client->setManner(kSetups[static_cast<size_t>(lane)].manner);
  return client;
}

void ManagerLink::keepClient(Lane lane, std::unique_ptr<client::HttpClient> client) {
  const MutexLock lock(mutex_);
  idle_[poolOf(lane)].push_back(std::move(client));
}

}  // namespace tidepool::agent
