// SPDX-License-Identifier: Apache-2.0
// The agent's end of the socket between programs and their host's agent, for tests that are the
// agent. Not thread-safe; what is sent and received may be so from several threads.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"
#include "runtime/transport/agent_wire.h"

namespace tidepool {

/// Listens for programs, in a folder of its own.
class AgentSocket {
 public:
  AgentSocket() {
    char folder[] = "/tmp/tidepool-agent-XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/sock";
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path_.c_str());
    listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_.get(), 4), 0);
  }
  ~AgentSocket() {
    unlink(path_.c_str());
    rmdir(folder_.c_str());
  }
  AgentSocket(const AgentSocket&) = delete;
  AgentSocket& operator=(const AgentSocket&) = delete;

  const char* path() const { return path_.c_str(); }
  /// The next program; no descriptor once the socket is shut.
  UniqueFd accept() { return UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  void shut() { shutdown(listener_.get(), SHUT_RDWR); }

 private:
  std::string folder_, path_;
  UniqueFd listener_;
};

/// What the program says next; nothing once it has gone.
inline std::optional<agent_wire::Request> hearProgram(int program) {
  std::array<std::byte, agent_wire::kRequestSize> message{};
  if (recv(program, message.data(), message.size(), 0) != static_cast<ssize_t>(message.size())) {
    return {};
  }
  const auto request = agent_wire::decodeRequest(message);
  EXPECT_TRUE(request) << request.error().text();
  return request ? std::optional(*request) : std::nullopt;
}

/// Says it to the program, with these pieces of a region and this file, if there is one. False if
/// the program has gone.
inline bool tellProgram(int program, agent_wire::Notice notice,
                        std::span<const agent_wire::Piece> pieces = {}, int file = -1) {
  notice.pieces = static_cast<uint16_t>(pieces.size());
  notice.files = file >= 0 ? 1 : 0;
  std::vector<std::byte> message(agent_wire::kNoticeHeadSize +
                                 pieces.size() * agent_wire::kPieceSize + notice.text.size());
  const std::span<std::byte> whole(message);
  agent_wire::encode(notice, whole.first<agent_wire::kNoticeHeadSize>());
  size_t at = agent_wire::kNoticeHeadSize;
  for (const agent_wire::Piece& piece : pieces) {
    agent_wire::encode(piece, whole.subspan(at).first<agent_wire::kPieceSize>());
    at += agent_wire::kPieceSize;
  }
  std::copy(notice.text.begin(), notice.text.end(), reinterpret_cast<char*>(&message[0] + at));
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
  return sendmsg(program, &header, MSG_NOSIGNAL) > 0;
}

/// A lease that outlasts the test.
inline bool promiseLease(int program) {
  const Nanoseconds day(86'400'000'000'000);
  return tellProgram(
      program,
      {.kind = agent_wire::NoticeKind::kLease, .until = BootClock().now() + day, .length = day});
}

}  // namespace tidepool
