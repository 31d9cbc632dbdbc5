// SPDX-License-Identifier: Apache-2.0
// An agent in this process, for tests of tables in a fabric: it gives regions out of memory files
// or a memory server of its own, all of one size whatever is asked for, drains one when it is told
// to, and knows when those have been left. Serves one program. The real one is tested beside the
// real manager (tests/fabricmgr/agent).
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fabricmgr/memserver/server.h"
#include "runtime/base/mutex.h"
#include "runtime/tier/remote_tier.h"
#include "tests/transport/agent_socket.h"

namespace tidepool {

class FakeAgent {
 public:
  enum class Gives { kFiles, kServers };
  FakeAgent(Gives gives, Bytes region) : gives_(gives), size_(region) {
    if (gives == Gives::kServers) {
      memserver::ServerOptions options;
      options.size = Bytes(kGiB);
      auto server = memserver::Server::start(options);
      EXPECT_TRUE(server) << server.error().text();
      server_ = std::move(*server);
    }
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeAgent() {
    socket_.shut();
    thread_.join();
  }

  std::string socket() const { return socket_.path(); }
  /// Of the regions that are held and not drained the one that was given first.
  void drainOldest() {
    MutexLock lock(mutex_);
    if (held_.empty()) return;
    const uint64_t region = held_.front();
    held_.pop_front();
    draining_.insert(region);
    say({.kind = agent_wire::NoticeKind::kDrain, .region = region, .epoch = Epoch(1)});
  }
  /// Requests are refused from now on.
  void giveNoMore() {
    MutexLock lock(mutex_);
    stingy_ = true;
  }
  /// Until all that was drained has been given back.
  void awaitLeft() TP_LOCKS_BY_HAND {
    MutexLock lock(mutex_);
    while (!draining_.empty()) changed_.wait(mutex_);
  }

 private:
  void serve() {
    const UniqueFd client = socket_.accept();
    if (!client.valid()) return;
    {
      MutexLock lock(mutex_);
      client_ = client.get();
    }
    while (const auto request = hearProgram(client.get())) {
      MutexLock lock(mutex_);
      answer(*request);
    }
    MutexLock lock(mutex_);
    client_ = -1;
  }
  void answer(const agent_wire::Request& request) TP_REQUIRES(mutex_) {
    using agent_wire::NoticeKind;
    using agent_wire::RequestKind;
    if (request.kind == RequestKind::kHello) {
      say({.kind = NoticeKind::kWelcome, .tag = request.tag, .text = "fake"});
      (void)promiseLease(client_);
    } else if (request.kind == RequestKind::kAsk) {
      give(request.tag);
    } else if (request.kind == RequestKind::kReturn) {
      std::erase(held_, request.region);
      draining_.erase(request.region);
      regions_.erase(request.region);
      changed_.notifyAll();
      say({.kind = NoticeKind::kReturned,
           .tag = request.tag,
           .region = request.region,
           .epoch = request.epoch});
    }
  }
  void give(uint64_t tag) TP_REQUIRES(mutex_) {
    if (stingy_) {
      return say({.kind = agent_wire::NoticeKind::kRefused,
                  .tag = tag,
                  .status = static_cast<uint16_t>(ErrorCode::kNoSpace),
                  .text = "no"});
    }
    const uint64_t id = next_++;
    agent_wire::Piece piece;
    piece.length = size_;
    int file = -1;
    Epoch epoch(1);
    if (gives_ == Gives::kFiles) {
      UniqueFd memory(memfd_create("fake-region", MFD_CLOEXEC));
      ASSERT_EQ(ftruncate(memory.get(), static_cast<off_t>(size_.value())), 0);
      file = memory.get();
      regions_[id].file = std::move(memory);
    } else {
      FarSpec far;
      far.kind = farKind("remote");
      far.size = size_;
      snprintf(far.target, sizeof far.target, "127.0.0.1:%u", server_->port());
      auto tier = RemoteTier::open(far, Nanoseconds(20'000'000'000));
      ASSERT_TRUE(tier) << tier.error().text();
      piece.kind = agent_wire::PieceKind::kServer;
      piece.region = (*tier)->region().region;
      piece.token = (*tier)->region().token;
      piece.endpoint = *parseEndpoint(far.target);
      epoch = (*tier)->region().epoch;
      regions_[id].tier = std::move(*tier);
    }
    held_.push_back(id);
    say({.kind = agent_wire::NoticeKind::kRegion,
         .tag = tag,
         .region = id,
         .epoch = epoch,
         .size = size_},
        {&piece, 1}, file);
  }
  void say(const agent_wire::Notice& notice, std::span<const agent_wire::Piece> pieces = {},
           int file = -1) TP_REQUIRES(mutex_) {
    (void)tellProgram(client_, notice, pieces, file);
  }

  struct Region {
    UniqueFd file;
    std::unique_ptr<RemoteTier> tier;  // keeps it on the server
  };
  const Gives gives_;
  const Bytes size_;
  AgentSocket socket_;
  std::unique_ptr<memserver::Server> server_;
  Mutex mutex_;
  CondVar changed_;
  int client_ TP_GUARDED_BY(mutex_) = -1;
  uint64_t next_ TP_GUARDED_BY(mutex_) = 1;
  bool stingy_ TP_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, Region> regions_ TP_GUARDED_BY(mutex_);
  std::deque<uint64_t> held_ TP_GUARDED_BY(mutex_);
  std::set<uint64_t> draining_ TP_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tidepool
