// SPDX-License-Identifier: Apache-2.0
// AgentClient: one socket, one buffer. See agent_client.h for the rules.
#include "runtime/transport/agent_client.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "runtime/base/clock.h"
#include "runtime/base/debug_check.h"
#include "runtime/base/raw_calls.h"

namespace tidepool {
namespace {

using agent_wire::NoticeKind;
using agent_wire::RequestKind;

constexpr size_t kPathSize = 108;
constexpr size_t kBufferSize = roundUp(agent_wire::kMaxNotice + 1, kPageSize);
constexpr size_t kPiecesSize =
    roundUp(agent_wire::kMaxPieces * sizeof(agent_wire::Piece), kPageSize);

/// The descriptors of a message, made Tidepool's own. Returns how many there were.
size_t takeFiles(msghdr* message, std::span<UniqueFd> into) {
  size_t count = 0;
  for (cmsghdr* at = CMSG_FIRSTHDR(message); at != nullptr; at = CMSG_NXTHDR(message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    const size_t here = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
      UniqueFd file(fd);
      if (count == into.size()) continue;  // closed: more than the protocol allows
      file.keep();
      into[count++] = std::move(file);
    }
  }
  return count;
}

Result<UniqueFd> connectTo(const char* path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  static_assert(sizeof(sockaddr_un::sun_path) == kPathSize);
  memcpy(address.sun_path, path, strnlen(path, kPathSize - 1));
  UniqueFd fd(raw::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return failErrno(ErrorCode::kUnreachable, "cannot make a socket");
  if (raw::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return failErrno(
        errno == EACCES || errno == EPERM ? ErrorCode::kPermission : ErrorCode::kUnreachable,
        "cannot connect to the agent at %.100s (is `fabricmgr agent` running?)", path);
  }
  fd.keep();
  return fd;
}

}  // namespace

Result<std::unique_ptr<AgentClient>> AgentClient::connect(const char* path) {
  if (path == nullptr) path = agent_wire::kDefaultSocket;
  const size_t length = strlen(path);
  if (length == 0 || length >= sizeof path_) {
    return fail(ErrorCode::kInvalidArgument, "'%.80s' cannot be the path of the agent's socket",
                path);
  }
  std::unique_ptr<AgentClient> client(new (std::nothrow) AgentClient());
  if (!client) return fail(ErrorCode::kNoMemory, "no memory for the agent's client");
  auto buffer = Mapping::anonymous(Bytes(kBufferSize));
  if (!buffer) return tl::unexpected(buffer.error());
  auto pieces = Mapping::anonymous(Bytes(kPiecesSize));
  if (!pieces) return tl::unexpected(pieces.error());
  client->buffer_ = std::move(*buffer);
  client->pieces_ = std::move(*pieces);
  memcpy(client->path_, path, length);
  // Others in this process, of another library perhaps, have to have other names.
  if (uint64_t name = 0;
      raw::call(SYS_getrandom, &name, sizeof name, GRND_NONBLOCK) == sizeof name) {
    client->name_ = std::clamp(name, uint64_t{1}, agent_wire::kNameless);
  }
  TP_TRY(client->reconnect());
  return client;
}

Status AgentClient::reconnect() {
  dropFiles();
  socket_.reset(-1);
  auto fresh = connectTo(path_);
  if (!fresh) return tl::unexpected(fresh.error());
  socket_ = std::move(*fresh);
  agent_wire::Request hello;
  hello.tag = name_;
  const Status sent = send(hello);
  // If it has hung up already, next() has what it said before.
  if (!sent && (sent.error().osError() == EPIPE || sent.error().osError() == ECONNRESET)) return {};
  return sent;
}

Status AgentClient::send(const agent_wire::Request& request) {
  std::array<std::byte, agent_wire::kRequestSize> message;
  agent_wire::encode(request, message);
  if (!socket_.valid()) return fail(ErrorCode::kUnreachable, "the agent at %.100s is away", path_);
  const ssize_t sent = raw::send(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(message.size())) return {};
  if (errno == EAGAIN || errno == EINTR) {
    return fail(ErrorCode::kNoSpace, "the agent at %.100s is behind: ask again later", path_);
  }
  return failErrno(ErrorCode::kUnreachable, "the agent at %.100s has gone", path_);
}

Status AgentClient::ask(uint64_t tag, Bytes size, agent_wire::Want want) {
  TP_DCHECK(tag != 0);
  return send({RequestKind::kAsk, tag, 0, Epoch(), size, want});
}

Status AgentClient::reclaim(uint64_t tag, uint64_t region, Epoch epoch) {
  TP_DCHECK(tag != 0 && region != 0);  // 0 is what is said unasked
  return send({RequestKind::kReclaim, tag, region, epoch, Bytes(), agent_wire::Want::kAny});
}

Status AgentClient::reclaimedAll() {
  return send({RequestKind::kAll, 0, 0, Epoch(), Bytes(), agent_wire::Want::kAny});
}

Status AgentClient::giveBack(uint64_t tag, uint64_t region, Epoch epoch) {
  TP_DCHECK(tag != 0 && region != 0);
  return send({RequestKind::kReturn, tag, region, epoch, Bytes(), agent_wire::Want::kAny});
}

Status AgentClient::reportLeft(uint64_t region, Epoch epoch, Bytes left, agent_wire::Waits waits) {
  return send({RequestKind::kLeft, 0, region, epoch, left, agent_wire::Want::kAny, waits});
}

Status AgentClient::askStatus(uint64_t tag) {
  return send({RequestKind::kStatus, tag, 0, Epoch(), Bytes(), agent_wire::Want::kAny});
}

void AgentClient::dropFiles() {
  for (size_t i = 0; i < file_count_; ++i) files_[i].reset(-1);
  file_count_ = 0;
}

tl::unexpected<Error> AgentClient::lose(const Error& error) {
  dropFiles();
  socket_.reset(-1);
  return tl::unexpected(error);
}

Result<bool> AgentClient::next(AgentNotice* notice) {
  dropFiles();
  if (!socket_.valid()) return fail(ErrorCode::kUnreachable, "the agent at %.100s is away", path_);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * agent_wire::kMaxFiles)];
  iovec part = {buffer_.data(), kBufferSize};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got;
  do {
    got = raw::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    // The kernel reports a reset once, ahead of what was said before it.
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) {
    return lose(Error::fromErrno(ErrorCode::kUnreachable, got == 0 ? ECONNRESET : errno,
                                 "the agent at %.100s has gone", path_));
  }
  file_count_ = takeFiles(&message, files_);
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return lose(Error::make(ErrorCode::kCorrupt,
                            "a message of the agent was cut off: are this "
                            "program's descriptors used up?"));
  }
  return take({buffer_.data(), static_cast<size_t>(got)}, notice);
}

Result<bool> AgentClient::take(std::span<const std::byte> message, AgentNotice* notice) {
  const auto said = agent_wire::decodeNotice(message);
  if (!said) return lose(said.error());
  if (said->files != file_count_) {
    return lose(Error::make(ErrorCode::kCorrupt, "malformed message: %zu descriptors instead of %u",
                            file_count_, unsigned{said->files}));
  }
  auto* const pieces = reinterpret_cast<agent_wire::Piece*>(pieces_.data());
  TP_CHECK_OP(size_t{said->pieces} * sizeof(agent_wire::Piece), <=, pieces_.size().value());
  for (size_t i = 0; i < said->pieces; ++i) {
    const auto at = said->pieces_at.subspan(i * agent_wire::kPieceSize);
    const auto piece = agent_wire::decodePiece(at.first<agent_wire::kPieceSize>(), said->files);
    if (!piece) return lose(piece.error());
    new (&pieces[i]) agent_wire::Piece(*piece);
  }
  const size_t length = std::min(said->text.size(), sizeof text_ - 1);
  memcpy(text_, said->text.data(), length);
  text_[length] = '\0';
  *notice = {said->kind,
             said->tag,
             said->region,
             said->epoch,
             said->size,
             said->status == 0 ? ErrorCode() : wire::errorOf(said->status),
             {pieces, said->pieces},
             {files_.data(), file_count_},
             text_,
             // A clock that stands elsewhere, as in a time namespace, must not make it longer.
             std::min(said->until, BootClock().now() + said->length)};
  return true;
}

Status AgentClient::wait(AgentNotice* notice, Nanoseconds timeout) {
  const MonotonicClock clock;
  const Nanoseconds until = clock.now() + timeout;
  for (;;) {
    const auto got = next(notice);
    if (!got) return tl::unexpected(got.error());
    if (*got) return {};
    const Nanoseconds now = clock.now();
    if (now >= until) {
      return fail(ErrorCode::kTimedOut, "no answer from the agent at %.100s in time", path_);
    }
    constexpr uint64_t kMillisecond = 1'000'000;
    const uint64_t left = (until - now).value() / kMillisecond + 1;
    pollfd waiting = {socket_.get(), POLLIN, 0};
    (void)raw::poll(&waiting, 1, static_cast<int>(std::min<uint64_t>(left, 60'000)));
  }
}

}  // namespace tidepool
