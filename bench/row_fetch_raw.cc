// SPDX-License-Identifier: Apache-2.0
// The plain peer of row_fetch: one process that reads a message and writes one, and one that keeps
// several under way. Links nothing of Tidepool.
#include "bench/row_fetch_raw.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace row_fetch {
namespace {

// The protocol's headers, and an offset for each row.
constexpr size_t kRequest = 48, kAnswer = 24, kOffset = 8;
constexpr size_t kChunk = 128 * 1024;  // bytes a call of the server's moves: they stay in the cache

struct Sizes {
  size_t request;
  size_t answer;
};

[[noreturn]] void die(const char* what) {
  perror(what);
  _exit(1);
}

void noDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

[[noreturn]] void serve(int listener, Sizes sizes) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int fd = accept(listener, nullptr, nullptr);
  if (fd < 0) die("row_fetch: accept");
  noDelay(fd);
  static char in[kChunk], out[kChunk];
  for (size_t have = 0;;) {
    const ssize_t got = recv(fd, in, sizeof in, 0);
    if (got <= 0) _exit(0);
    size_t owed = 0;
    for (have += static_cast<size_t>(got); have >= sizes.request; have -= sizes.request) {
      owed += sizes.answer;
    }
    while (owed > 0) {
      const ssize_t put = send(fd, out, std::min(owed, sizeof out), MSG_NOSIGNAL);
      if (put <= 0) _exit(0);
      owed -= static_cast<size_t>(put);
    }
  }
}

/// A connection to a child that serves; ends it.
class Peer {
 public:
  explicit Peer(Sizes sizes) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (listener < 0 || bind(listener, any, length) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, any, &length) != 0) {
      die("row_fetch: listen");
    }
    child_ = fork();
    if (child_ < 0) die("row_fetch: fork");
    if (child_ == 0) serve(listener, sizes);
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd_ < 0 || connect(fd_, any, length) != 0) die("row_fetch: connect");
    close(listener);
    noDelay(fd_);
  }
  ~Peer() {
    close(fd_);
    waitpid(child_, nullptr, 0);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  pid_t child_ = -1;
};

class Mover {
 public:
  Mover(Sizes sizes, uint64_t in_flight)
      : sizes_(sizes),
        in_flight_(in_flight),
        peer_(sizes),
        out_(sizes.request, 1),
        in_(sizes.answer * in_flight),
        sent_at_(in_flight) {}

  Outcome run(double seconds) {
    const uint64_t warm = nowNs() + static_cast<uint64_t>(seconds * 2e8);
    uint64_t began = 0;
    for (;;) {
      sendWhatFits();
      receive();
      const uint64_t now = nowNs();
      if (began == 0 && now >= warm) began = now, outcome_ = Outcome();
      if (began == 0 || now < began + static_cast<uint64_t>(seconds * 1e9)) continue;
      outcome_.seconds = static_cast<double>(now - began) / 1e9;
      return outcome_;
    }
  }

 private:
  void sendWhatFits() {
    while (sent_ < answered_ + in_flight_) {
      if (sent_part_ == 0) sent_at_[sent_ % in_flight_] = nowNs();
      const ssize_t put = send(peer_.fd(), out_.data() + sent_part_, sizes_.request - sent_part_,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
      if (put < 0 && errno == EAGAIN) return;
      if (put <= 0) die("row_fetch: send");
      sent_part_ += static_cast<size_t>(put);
      if (sent_part_ < sizes_.request) return;
      sent_part_ = 0;
      ++sent_;
    }
  }

  void receive() {
    const size_t at = answered_ % in_flight_ * sizes_.answer + answer_part_;
    // With a request half sent this must not sleep: the peer may be waiting for the rest.
    const int flags = sent_part_ == 0 && sent_ == answered_ + in_flight_ ? 0 : MSG_DONTWAIT;
    const ssize_t got = recv(peer_.fd(), in_.data() + at, in_.size() - at, flags);
    if (got < 0 && errno == EAGAIN) {
      pollfd either = {peer_.fd(), POLLIN | POLLOUT, 0};
      poll(&either, 1, -1);
      return;
    }
    if (got <= 0) die("row_fetch: recv");
    const uint64_t now = nowNs();
    for (answer_part_ += static_cast<size_t>(got); answer_part_ >= sizes_.answer;
         answer_part_ -= sizes_.answer) {
      outcome_.add(now - sent_at_[answered_++ % in_flight_]);
    }
  }

  const Sizes sizes_;
  const uint64_t in_flight_;
  Peer peer_;
  std::vector<char> out_;
  std::vector<char> in_;
  std::vector<uint64_t> sent_at_;
  uint64_t sent_ = 0, answered_ = 0;
  size_t sent_part_ = 0, answer_part_ = 0;
  Outcome outcome_;
};

}  // namespace

Outcome rawRead(const Shape& shape, double seconds) {
  const Sizes sizes = {kRequest + shape.batch * kOffset, kAnswer + shape.batch * shape.row};
  return Mover(sizes, shape.in_flight).run(seconds);
}

Outcome rawWrite(const Shape& shape, double seconds) {
  const Sizes sizes = {kRequest + shape.batch * (kOffset + shape.row), kAnswer};
  return Mover(sizes, shape.in_flight).run(seconds);
}

}  // namespace row_fetch
