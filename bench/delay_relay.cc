// SPDX-License-Identifier: Apache-2.0
// delay_relay: a network of a given length. Takes TCP connections on the loopback, and passes every
// byte on to HOST's port, and back, half of a round trip later; as many as come are on their way at
// once. Prints "listening on 127.0.0.1:PORT". One thread; ends when it is told to.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <list>
#include <vector>

namespace {

struct Chunk {
  uint64_t due;
  std::vector<char> bytes;
  size_t sent = 0;
};
struct Direction {
  int from, to;
  std::deque<Chunk> under_way;
  size_t bytes = 0;
};
using Pair = std::array<Direction, 2>;  // of one connection

constexpr size_t kMostUnderWay = 16
                                 << 20;  // then it is not read on: a window, as a network has one

uint64_t nowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(t.tv_nsec);
}

sockaddr_in loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int listenAnywhere() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, generic, size) != 0 || listen(listener, 64) != 0 ||
      getsockname(listener, generic, &size) != 0) {
    perror("delay_relay");
    exit(1);
  }
  printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
  fflush(stdout);
  return listener;
}

void accept(int listener, int port, std::list<Pair>& pairs) {
  const int one = 1;
  const sockaddr_in address = loopback(port);
  const int near = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  const int far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (near < 0 || connect(far, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    perror("delay_relay: connect");
    exit(1);
  }
  for (const int fd : {near, far}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  pairs.push_back({Direction{near, far, {}}, Direction{far, near, {}}});
}

/// False: that side has ended.
bool take(Direction& way, uint64_t delay) {
  static char buffer[1 << 20];
  const ssize_t got = recv(way.from, buffer, sizeof buffer, MSG_DONTWAIT);
  if (got <= 0) return false;
  way.under_way.push_back({nowNs() + delay, std::vector<char>(buffer, buffer + got)});
  way.bytes += static_cast<size_t>(got);
  return true;
}

void pass(Direction& way) {
  while (!way.under_way.empty() && way.under_way.front().due <= nowNs()) {
    Chunk& chunk = way.under_way.front();
    const ssize_t sent = send(way.to, chunk.bytes.data() + chunk.sent,
                              chunk.bytes.size() - chunk.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent <= 0) return;
    chunk.sent += static_cast<size_t>(sent);
    way.bytes -= static_cast<size_t>(sent);
    if (chunk.sent == chunk.bytes.size()) way.under_way.pop_front();
  }
}

/// Waits for something to take, or to pass on; two entries of `waits` for each direction, after the
/// listener's.
void sleepUntilDue(int listener, const std::list<Pair>& pairs, std::vector<pollfd>& waits) {
  waits.assign(1, {listener, POLLIN, 0});
  uint64_t next = UINT64_MAX;
  const uint64_t now = nowNs();
  for (const Pair& pair : pairs) {
    for (const Direction& way : pair) {
      // A chunk that is due and still here waits for room.
      const bool full = !way.under_way.empty() && way.under_way.front().due <= now;
      waits.push_back({way.from, static_cast<short>(way.bytes < kMostUnderWay ? POLLIN : 0), 0});
      waits.push_back({way.to, static_cast<short>(full ? POLLOUT : 0), 0});
      if (!way.under_way.empty() && !full) next = std::min(next, way.under_way.front().due);
    }
  }
  const uint64_t left = next > now ? next - now : 0;
  const timespec timeout = {static_cast<time_t>(left / 1'000'000'000),
                            static_cast<long>(left % 1'000'000'000)};
  ppoll(waits.data(), waits.size(), next == UINT64_MAX ? nullptr : &timeout, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  int port = 0;
  uint64_t round_trip_us = 200;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--port") == 0) port = atoi(argv[i + 1]);
    if (strcmp(argv[i], "--us") == 0) round_trip_us = strtoull(argv[i + 1], nullptr, 10);
  }
  if (port == 0) {
    fprintf(stderr, "usage: delay_relay --port PORT [--us ROUND_TRIP]\n");
    return 2;
  }
  prctl(PR_SET_TIMERSLACK, 1000ul);
  const int listener = listenAnywhere();
  std::list<Pair> pairs;
  std::vector<pollfd> waits;
  for (;;) {
    sleepUntilDue(listener, pairs, waits);
    const pollfd* wait = waits.data() + 1;
    for (auto pair = pairs.begin(); pair != pairs.end();) {
      bool ended = false;
      for (Direction& way : *pair) {
        const bool readable = (wait->revents & (POLLIN | POLLHUP | POLLERR)) != 0;
        wait += 2;
        if (readable && way.bytes < kMostUnderWay) ended |= !take(way, round_trip_us * 500);
        pass(way);
      }
      if (ended) {
        close((*pair)[0].from);
        close((*pair)[0].to);
      }
      pair = ended ? pairs.erase(pair) : std::next(pair);
    }
    if ((waits[0].revents & POLLIN) != 0) accept(listener, port, pairs);
  }
}
