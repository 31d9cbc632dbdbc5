// SPDX-License-Identifier: Apache-2.0
// Asking the manager, and other work that blocks, from a thread that must not: threads do it, and
// what comes of it is carried out in the loop. Heartbeats have a thread of their own, so that they
// never wait for devices or for a watch. Belongs to the loop's thread.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fabricmgr/agent/event_loop.h"
#include "fabricmgr/agent/fabric_pin.h"
#include "fabricmgr/api/json_value.h"
#include "fabricmgr/api/work_lane.h"
#include "fabricmgr/client/http_client.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"

namespace tidepool::agent {

/// The manager, from a thread that may wait for it.
class Asker {
 public:
  /// All are borrowed; `target` is what the client asks.
  Asker(client::HttpClient& client, FabricPin& pin, const client::Target& target)
      : client_(client), pin_(pin), target_(target) {}
  /// The answer's JSON. Errors: kUnreachable or kTimedOut when there was no answer, or one of
  /// another fabric (see FabricPin), kCorrupt when it was none, else those of the manager's problem
  /// document, with its text.
  Result<api::JsonValue> get(const std::string& path);
  Result<api::JsonValue> post(const std::string& path, const std::string& body);
  /// As HttpClient::keepOthers().
  void keepOthers(const std::string& path, Nanoseconds time) {
    client_.keepOthers(path, static_cast<long>(time.value() / 1'000'000));
  }

 private:
  Result<api::JsonValue> answerOf(const client::Reply& reply);

  client::HttpClient& client_;
  FabricPin& pin_;
  const client::Target& target_;
};

enum class Lane : uint8_t { kHeart = 0, kWatch = 1, kList = 2, kWork = 3 };
inline constexpr size_t kLanes = 4;

class ManagerLink {
 public:
  /// `pin` is borrowed. Throws std::invalid_argument when the target is none.
  ManagerLink(EventLoop& loop, FabricPin& pin, client::Target target);
  /// Ends what is under way; no `done` is called any more.
  ~ManagerLink();
  ManagerLink(const ManagerLink&) = delete;
  ManagerLink& operator=(const ManagerLink&) = delete;

  /// `work` runs in a thread of the lane and gets an Asker; `done` gets what it returned, in the
  /// loop.
  template <typename Work, typename Done>
  void run(Lane lane, Work work, Done done) {
    push(lane, [this, lane, work = std::move(work), done = std::move(done)]() mutable {
      auto client = takeClient(lane);
      Asker asker(*client, pin_, target_);
      auto outcome = work(asker);
      keepClient(lane, std::move(client));
      loop_.post([done = std::move(done), outcome = std::move(outcome)]() mutable {
        done(std::move(outcome));
      });
    });
  }

 private:
  void push(Lane lane, std::function<void()> work);
  std::unique_ptr<client::HttpClient> takeClient(Lane lane);
  void keepClient(Lane lane, std::unique_ptr<client::HttpClient> client);

  using Clients = std::vector<std::unique_ptr<client::HttpClient>>;

  EventLoop& loop_;
  FabricPin& pin_;
  std::atomic<bool> cancelled_{false};
  client::Target target_;
  Mutex mutex_;
  // By lane, but for kList's, which are kHeart's; connected, mostly.
  std::array<Clients, kLanes> idle_ TP_GUARDED_BY(mutex_);
  std::array<std::unique_ptr<api::WorkLane>, kLanes> lanes_;
};

}  // namespace tidepool::agent
