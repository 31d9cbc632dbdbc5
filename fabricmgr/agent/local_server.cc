// SPDX-License-Identifier: Apache-2.0
// LocalServer: one message in, or out, is one system call.
#include "fabricmgr/agent/local_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tidepool::agent {
namespace {

using agent_wire::Notice;
using agent_wire::NoticeKind;
using agent_wire::Request;
using agent_wire::RequestKind;

constexpr int kBacklog = 512;
constexpr int kReadsInARow = 32;  // before others get their turn
/// Of one program: one that does not read what it is told is cut off.
constexpr size_t kMostOutgoing = 256;
constexpr Nanoseconds kAcceptPause(100'000'000);  // when descriptors have run out

/// Sends one message. False if the socket is full. Errors: kUnreachable.
Result<bool> sendMessage(int socket, std::span<const std::byte> bytes, const Files& files) {
  iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * agent_wire::kMaxFiles)] = {};
  if (!files.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * files.size());
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int) * files.size());
    for (size_t i = 0; i < files.size(); ++i) {
      const int fd = files[i]->get();
      memcpy(CMSG_DATA(head) + i * sizeof fd, &fd, sizeof fd);
    }
  }
  const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return true;
  if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS) return false;
  return failErrno(ErrorCode::kUnreachable, "cannot send to a program");
}

std::vector<std::byte> bytesOf(const Notice& notice, const Attached* attached) {
  Notice head = notice;
  head.text = notice.text.substr(0, agent_wire::kMaxText);
  head.pieces = static_cast<uint16_t>(attached == nullptr ? 0 : attached->pieces.size());
  head.files = static_cast<uint16_t>(attached == nullptr ? 0 : attached->files.size());
  const size_t pieces = head.pieces * agent_wire::kPieceSize;
  std::vector<std::byte> bytes(agent_wire::kNoticeHeadSize + pieces + head.text.size());
  const std::span<std::byte> all(bytes);
  agent_wire::encode(head, all.first<agent_wire::kNoticeHeadSize>());
  for (size_t i = 0; i < head.pieces; ++i) {
    const auto at = all.subspan(agent_wire::kNoticeHeadSize + i * agent_wire::kPieceSize);
    agent_wire::encode(attached->pieces[i], at.first<agent_wire::kPieceSize>());
  }
  std::byte* const text = bytes.data() + agent_wire::kNoticeHeadSize + pieces;
  head.text.copy(reinterpret_cast<char*>(text), head.text.size());  // of no text, it may be null
  return bytes;
}

/// Tells the end of a connection from an empty message.
bool hasEnded(int socket) {
  pollfd look = {socket, POLLIN | POLLRDHUP, 0};
  return poll(&look, 1, 0) == 1 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

Notice refusalOf(const Error& error, uint64_t tag) {
  Notice notice;
  notice.kind = NoticeKind::kRefused;
  notice.tag = tag;
  notice.status = static_cast<uint16_t>(error.code());
  notice.text = error.text();
  return notice;
}

/// A socket that nobody listens at any more is in the way; one that somebody does is theirs.
Status clearAway(const sockaddr_un& address) {
  const UniqueFd probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto* at = reinterpret_cast<const sockaddr*>(&address);
  const int outcome = connect(probe.get(), at, sizeof address);
  if (outcome == 0 || errno == EAGAIN) {
    return fail(ErrorCode::kConflict, "another agent listens at %.100s", address.sun_path);
  }
  if (errno == ECONNREFUSED) (void)unlink(address.sun_path);
  return {};
}

}  // namespace

LocalServer::LocalServer(Setup setup) : setup_(std::move(setup)) {}

LocalServer::~LocalServer() {
  programs_.clear();
  if (listener_.valid()) (void)unlink(setup_.path.c_str());
}

Status LocalServer::listen() {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (setup_.path.empty() || setup_.path.size() >= sizeof address.sun_path) {
    return fail(ErrorCode::kInvalidArgument, "'%.100s' cannot be the path of a socket",
                setup_.path.c_str());
  }
  setup_.path.copy(address.sun_path, sizeof address.sun_path - 1);
  TP_TRY(clearAway(address));
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const bool bound = fd.valid() && bind(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                                        sizeof address) == 0;
  // Everybody may connect: whether they get memory is decided by who they are.
  if (!bound || chmod(setup_.path.c_str(), 0666) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return failErrno(errno == EADDRINUSE ? ErrorCode::kConflict : ErrorCode::kPermission,
                     "cannot listen at %.100s", setup_.path.c_str());
  }
  listener_ = std::move(fd);
  acceptable_ = std::make_unique<Trigger>(*setup_.loop, listener_.get(), EV_READ,
                                          [this](short) { accept(); });
  accept_again_ = std::make_unique<Trigger>(*setup_.loop, [this](short) {
    acceptable_ = std::make_unique<Trigger>(*setup_.loop, listener_.get(), EV_READ,
                                            [this](short) { accept(); });
  });
  return {};
}

void LocalServer::accept() {
  for (;;) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      takeIn(std::move(socket));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      acceptable_->cancel();
      accept_again_->after(kAcceptPause);
    }
    return;
  }
}

void LocalServer::turnAway(UniqueFd socket, const Error& why) {
  setup_.refused(why.text());
  (void)sendMessage(socket.get(), bytesOf(refusalOf(why, 0), nullptr), {});
}

bool LocalServer::mayHaveMemory(int socket, const Peer& peer) const {
  const Allowed& allowed = setup_.allowed;
  const auto isIn = [](const auto& list, auto one) {
    return std::find(list.begin(), list.end(), one) != list.end();
  };
  if (allowed.everybody || isIn(allowed.users, peer.uid) || isIn(allowed.groups, peer.gid)) {
    return true;
  }
  if (allowed.groups.empty()) return false;
  std::vector<gid_t> groups(65'536);  // the most that a process can have
  auto size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) != 0) return false;
  groups.resize(size / sizeof(gid_t));
  return std::any_of(groups.begin(), groups.end(),
                     [&](gid_t one) { return isIn(allowed.groups, one); });
}

void LocalServer::takeIn(UniqueFd socket) {
  const auto peer = peerOf(socket.get());
  if (!peer) return turnAway(std::move(socket), peer.error());
  if (!mayHaveMemory(socket.get(), *peer)) {
    return turnAway(std::move(socket),
                    Error::make(ErrorCode::kPermission,
                                "user %u may not have memory of this agent: start it with "
                                "--allow-user %u, or with a group of that user",
                                peer->uid, peer->uid));
  }
  const size_t of_user = of_user_.contains(peer->uid) ? of_user_.at(peer->uid) : 0;
  if (programs_.size() >= setup_.programs || of_user >= setup_.programs_of_user) {
    return turnAway(std::move(socket), Error::make(ErrorCode::kNoSpace,
                                                   "too many programs are connected (%zu, of "
                                                   "user %u %zu)",
                                                   programs_.size(), peer->uid, of_user));
  }
  ++of_user_[peer->uid];
  const ProgramId id = next_++;
  Program& program = programs_[id];
  program.socket = std::move(socket);
  program.peer = *peer;
  program.readable = std::make_unique<Trigger>(*setup_.loop, program.socket.get(), EV_READ,
                                               [this, id](short) { read(id); });
}

const Peer* LocalServer::find(ProgramId program) {
  const auto found = programs_.find(program);
  return found == programs_.end() ? nullptr : &found->second.peer;
}

void LocalServer::read(ProgramId id) {
  for (int i = 0; i < kReadsInARow; ++i) {
    if (!readOne(id)) return;
  }
}

bool LocalServer::readOne(ProgramId id) {
  const auto found = programs_.find(id);
  if (found == programs_.end()) return false;
  Program& program = found->second;
  // Without room for descriptors: the kernel closes any that come along.
  std::byte bytes[agent_wire::kRequestSize + 1];
  const ssize_t got = recv(program.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0 && hasEnded(program.socket.get())) {
    end(id, Ending::kByItself);
    return false;
  }
  const auto request =
      agent_wire::decodeRequest({bytes, static_cast<size_t>(std::max<ssize_t>(got, 0))});
  if (!request) {
    breach(id, request.error());
    return false;
  }
  if ((request->kind == RequestKind::kHello) == program.greeted) {
    breach(id, Error::make(ErrorCode::kCorrupt, "malformed conversation: %s where %s has to be",
                           agent_wire::nameOf(request->kind),
                           program.greeted ? "another request" : "hello"));
    return false;
  }
  if (!program.greeted) {
    program.greeted = true;
    if (request->tag != agent_wire::kNameless) program.peer.client = ClientName(request->tag);
    Notice welcome;
    welcome.tag = request->tag;
    welcome.text = setup_.host;
    tell(id, welcome, nullptr);
    if (lease_.until != Nanoseconds()) tell(id, lease_, nullptr);
    return true;
  }
  setup_.request(id, *request);
  return true;
}

void LocalServer::breach(ProgramId id, const Error& error) {
  const Program& program = programs_.at(id);
  setup_.refused(fmt::format("process {} of user {} is cut off: {}", program.peer.process.pid,
                             program.peer.uid, error.text()));
  (void)sendMessage(program.socket.get(), bytesOf(refusalOf(error, 0), nullptr), {});
  end(id, Ending::kCutOff);
}

void LocalServer::tell(ProgramId id, Notice notice, const Attached* attached) {
  const auto found = programs_.find(id);
  if (found == programs_.end()) return;
  Program& program = found->second;
  Outgoing message{bytesOf(notice, attached), {}};
  // One that is stopped need not find all of them.
  const bool lease = notice.kind == NoticeKind::kLease;
  const bool replaces = std::exchange(program.lease_waits, lease) && lease;
  if (replaces && !program.outgoing.empty()) {
    program.outgoing.back() = std::move(message);
    return;
  }
  if (program.outgoing.size() >= kMostOutgoing) return endSoon(id);
  if (attached != nullptr) message.files = attached->files;
  if (program.outgoing.empty()) {
    const auto sent = sendMessage(program.socket.get(), message.bytes, message.files);
    // If it has hung up, reading finds that out.
    if (!sent || *sent) return;
    program.writable = std::make_unique<Trigger>(*setup_.loop, program.socket.get(), EV_WRITE,
                                                 [this, id](short) { write(id); });
  }
  program.outgoing.push_back(std::move(message));
}

void LocalServer::renewLease(Nanoseconds until, Nanoseconds length) {
  lease_.kind = NoticeKind::kLease;
  lease_.until = until;
  lease_.length = length;
  for (auto& [id, program] : programs_) {
    if (program.greeted) tell(id, lease_, nullptr);
  }
}

void LocalServer::write(ProgramId id) {
  const auto found = programs_.find(id);
  if (found == programs_.end()) return;
  Program& program = found->second;
  while (!program.outgoing.empty()) {
    const Outgoing& message = program.outgoing.front();
    const auto sent = sendMessage(program.socket.get(), message.bytes, message.files);
    if (sent && !*sent) return;
    program.outgoing.pop_front();
  }
  program.writable.reset();
}

void LocalServer::endSoon(ProgramId id) {
  setup_.loop->post([this, id] {
    const auto found = programs_.find(id);
    if (found == programs_.end()) return;
    setup_.refused(fmt::format("process {} of user {} is cut off: it does not read what it is told",
                               found->second.peer.process.pid, found->second.peer.uid));
    end(id, Ending::kCutOff);
  });
}

void LocalServer::end(ProgramId id, Ending ending) {
  const auto found = programs_.find(id);
  if (found == programs_.end()) return;
  const uid_t uid = found->second.peer.uid;
  // Until now it can be found: what it had is looked up by who it is.
  if (ending == Ending::kByItself) {
    setup_.gone(id);
  } else {
    setup_.cut_off(id);
  }
  programs_.erase(id);
  const auto of_user = of_user_.find(uid);
  if (--of_user->second == 0) of_user_.erase(of_user);
}

}  // namespace tidepool::agent
