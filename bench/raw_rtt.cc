// SPDX-License-Identifier: Apache-2.0
// raw_rtt: the least that fetching one 4 KiB page over loopback TCP can cost here: a 32-byte
// request, a page (and a 32-byte header) back, between two processes that are left to the
// scheduler, as a program and its memory server are. Prints one JSON object; times in microseconds.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace {

constexpr size_t kRequest = 32, kReply = 4096 + 32;

[[noreturn]] void die(const char* what) {
  perror(what);
  exit(1);
}

uint64_t nowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(t.tv_nsec);
}

bool readAll(int fd, char* buffer, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t got = read(fd, buffer + done, size - done);
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

void writeAll(int fd, const char* buffer, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t put = write(fd, buffer + done, size - done);
    if (put <= 0) die("raw_rtt: write");
    done += static_cast<size_t>(put);
  }
}

void noDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

[[noreturn]] void serve(int listener) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int fd = accept(listener, nullptr, nullptr);
  if (fd < 0) die("raw_rtt: accept");
  noDelay(fd);
  char request[kRequest];
  static char reply[kReply];
  while (readAll(fd, request, sizeof request)) writeAll(fd, reply, sizeof reply);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? atoi(argv[1]) : 20000;
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (count <= 0 || listener < 0 ||
      bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    die("raw_rtt: listen");
  }
  const pid_t server = fork();
  if (server < 0) die("raw_rtt: fork");
  if (server == 0) serve(listener);

  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0)
    die("raw_rtt: connect");
  noDelay(fd);
  const char request[kRequest] = {};
  static char reply[kReply];
  std::vector<uint64_t> times;
  times.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count + count / 10; i++) {
    const uint64_t began = nowNs();
    writeAll(fd, request, sizeof request);
    if (!readAll(fd, reply, sizeof reply)) die("raw_rtt: read");
    if (i >= count / 10) times.push_back(nowNs() - began);  // the first tenth warms up
  }
  close(fd);
  waitpid(server, nullptr, 0);
  std::sort(times.begin(), times.end());
  const size_t n = times.size();
  printf("{\"count\": %zu, \"p50_us\": %.2f, \"p99_us\": %.2f}\n", n,
         static_cast<double>(times[n / 2]) / 1000, static_cast<double>(times[n * 99 / 100]) / 1000);
  return 0;
}
