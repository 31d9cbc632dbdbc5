// SPDX-License-Identifier: Apache-2.0
// An agent in this process, for tests of tables in a fabric: it gives regions out of memory files
// or a memory server of its own, all of one size whatever is asked for, drains one when it is told
// to, and knows when those have been left. Serves one program. The real one is tested beside the
// real manager (tests/fabricmgr/agent).
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

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
#include "runtime/transport/agent_wire.h"

namespace tidepool {

class FakeAgent {
 public:
  enum class Gives { kFiles, kServers };
  FakeAgent(Gives gives, Bytes region) : gives_(gives), size_(region) {
    char folder[] = "/tmp/tidepool-agent-XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", socket().c_str());
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_.get(), 1), 0);
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
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    unlink(socket().c_str());
    rmdir(folder_.c_str());
  }

  std::string socket() const { return folder_ + "/sock"; }
  /// Of the regions that are held and not drained the one that was given first.
  void drainOldest() {
    MutexLock lock(mutex_);
    if (held_.empty()) return;
    const uint64_t region = held_.front();
    held_.pop_front();
    draining_.insert(region);
    say({agent_wire::NoticeKind::kDrain, 0, region, Epoch(1), Bytes(), 0, 0, 0, {}, {}}, {}, -1);
  }
  /// Whoever asks from now on is refused.
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
    UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid()) return;
    {
      MutexLock lock(mutex_);
      client_ = client.get();
    }
    std::array<std::byte, agent_wire::kRequestSize> message;
    while (recv(client.get(), message.data(), message.size(), 0) ==
           static_cast<ssize_t>(message.size())) {
      const auto request = agent_wire::decodeRequest(message);
      ASSERT_TRUE(request) << request.error().text();
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
      say({NoticeKind::kWelcome, request.tag, 0, Epoch(), Bytes(), 0, 0, 0, "fake", {}}, {}, -1);
    } else if (request.kind == RequestKind::kAsk) {
      give(request.tag);
    } else if (request.kind == RequestKind::kReturn) {
      std::erase(held_, request.region);
      draining_.erase(request.region);
      regions_.erase(request.region);
      changed_.notifyAll();
      say({NoticeKind::kReturned,
           request.tag,
           request.region,
           request.epoch,
           Bytes(),
           0,
           0,
           0,
           {},
           {}},
          {}, -1);
    }
  }
  void give(uint64_t tag) TP_REQUIRES(mutex_) {
    if (stingy_) {
      const auto code = static_cast<uint16_t>(ErrorCode::kNoSpace);
      return say({agent_wire::NoticeKind::kRefused, tag, 0, Epoch(), Bytes(), code, 0, 0, "no", {}},
                 {}, -1);
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
    const uint16_t files = file >= 0 ? 1 : 0;
    say({agent_wire::NoticeKind::kRegion, tag, id, epoch, size_, 0, 1, files, {}, {}}, {&piece, 1},
        file);
  }
  void say(const agent_wire::Notice& notice, std::span<const agent_wire::Piece> pieces, int file)
      TP_REQUIRES(mutex_) {
    std::vector<std::byte> message(agent_wire::kNoticeHeadSize +
                                   pieces.size() * agent_wire::kPieceSize + notice.text.size());
    agent_wire::encode(notice, std::span<std::byte, agent_wire::kNoticeHeadSize>(
                                   message.data(), agent_wire::kNoticeHeadSize));
    std::byte* at = message.data() + agent_wire::kNoticeHeadSize;
    for (const agent_wire::Piece& piece : pieces) {
      agent_wire::encode(piece,
                         std::span<std::byte, agent_wire::kPieceSize>(at, agent_wire::kPieceSize));
      at += agent_wire::kPieceSize;
    }
    std::copy(notice.text.begin(), notice.text.end(), reinterpret_cast<char*>(at));
    iovec part = {message.data(), message.size()};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (file >= 0) {
      header.msg_control = control;
      header.msg_controllen = sizeof control;
      cmsghdr* const rights = CMSG_FIRSTHDR(&header);
      *rights = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
      memcpy(CMSG_DATA(rights), &file, sizeof file);
    }
    (void)sendmsg(client_, &header, MSG_NOSIGNAL);
  }

  struct Region {
    UniqueFd file;
    std::unique_ptr<RemoteTier> tier;  // keeps it on the server
  };
  const Gives gives_;
  const Bytes size_;
  std::string folder_;
  UniqueFd listener_;
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
