// SPDX-License-Identifier: Apache-2.0
// Many agents against a fabric manager: opens connections over mutual TLS, sends each one's
// heartbeat at its own moment of every period, and prints counts and latencies as JSON. One thread,
// one epoll.
//   fabric_api_load HOST:PORT CA CERT KEY REQUEST_FILE CONNECTIONS PERIOD_MS SECONDS
// REQUEST_FILE holds one whole HTTP request; %d in it becomes the connection's number. A period of
// 0: each sends its next request as soon as it has the answer to the last.
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/transport/connection.h"

namespace tidepool {
namespace {

constexpr size_t kOpening = 64;  // handshakes under way at once
constexpr uint64_t kMillisecond = 1'000'000;

struct Agent {
  std::unique_ptr<Connection> socket;
  SSL* ssl = nullptr;
  bool ready = false;
  std::string request;
  std::string answer;
  uint64_t sent_at = 0;  // ns; 0: nothing is awaited
};

struct Wake {
  uint64_t at;  // ns
  size_t agent;
  bool operator<(const Wake& other) const { return at > other.at; }  // earliest on top
};

class Load {
 public:
  Load(Endpoint endpoint, SSL_CTX* context, std::string request, size_t agents, uint64_t period)
      : endpoint_(std::move(endpoint)),
        context_(context),
        request_(std::move(request)),
        agents_(agents),
        period_(period),
        epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

  bool open() {
    const uint64_t start = clock_.now().value();
    while (ready_ + failed_ < agents_.size()) {
      while (opened_ < agents_.size() && opened_ - ready_ - failed_ < kOpening) connectNext();
      poll(1000);
    }
    open_ns_ = clock_.now().value() - start;
    return failed_ == 0;
  }

  void beat(uint64_t duration) {
    const uint64_t start = clock_.now().value();
    for (size_t i = 0; i < agents_.size(); ++i) {
      if (period_ == 0) send(i);
      wakes_.push({period_ == 0 ? UINT64_MAX : start + period_ * i / agents_.size(), i});
    }
    for (uint64_t now = start; now < start + duration; now = clock_.now().value()) {
      while (wakes_.top().at <= now) {
        const Wake wake = wakes_.top();
        wakes_.pop();
        wakes_.push({wake.at + period_, wake.agent});
        send(wake.agent);
      }
      const uint64_t wait = (wakes_.top().at - std::min(now, wakes_.top().at)) / kMillisecond;
      poll(static_cast<int>(std::min<uint64_t>(wait + 1, 100)));
    }
    beat_ns_ = clock_.now().value() - start;
  }

  void report() {
    std::sort(latencies_.begin(), latencies_.end());
    const auto at = [&](double q) {
      if (latencies_.empty()) return 0.0;
      return static_cast<double>(
                 latencies_[static_cast<size_t>(q * static_cast<double>(latencies_.size() - 1))]) /
             1e3;
    };
    printf(
        "{\"connections\":%zu,\"refused\":%zu,\"open_seconds\":%.2f,\"seconds\":%.2f,"
        "\"answers\":%zu,\"errors\":%zu,\"late\":%zu,\"p50_us\":%.0f,\"p99_us\":%.0f,\"max_us\":%."
        "0f}\n",
        ready_, failed_, static_cast<double>(open_ns_) / 1e9, static_cast<double>(beat_ns_) / 1e9,
        latencies_.size(), errors_, late_, at(0.5), at(0.99), at(1));
  }

 private:
  void connectNext() {
    Agent& agent = agents_[opened_];
    const size_t number = opened_++;
    agent.request = request_;
    if (const size_t place = agent.request.find("%d"); place != std::string::npos) {
      agent.request.replace(place, 2, std::to_string(number));
    }
    auto socket = connectTcp(endpoint_, Nanoseconds(10'000'000'000));
    if (!socket) {
      ++failed_;
      return;
    }
    agent.socket = std::move(*socket);
    fcntl(agent.socket->fd(), F_SETFL, O_NONBLOCK);
    agent.ssl = SSL_new(context_);
    SSL_set_fd(agent.ssl, agent.socket->fd());
    SSL_set_connect_state(agent.ssl);
    epoll_event event = {EPOLLIN | EPOLLOUT | EPOLLET, {.u64 = number}};
    epoll_ctl(epoll_, EPOLL_CTL_ADD, agent.socket->fd(), &event);
  }

  void poll(int wait_ms) {
    epoll_event events[256];
    const int count = epoll_wait(epoll_, events, 256, wait_ms);
    for (int i = 0; i < count; ++i) advance(agents_[events[i].data.u64]);
  }

  void advance(Agent& agent) {
    if (!agent.socket) return;
    if (!agent.ready) {
      const int result = SSL_do_handshake(agent.ssl);
      if (result == 1) {
        agent.ready = true;
        ++ready_;
      } else if (!again(agent, result)) {
        ++failed_;
        drop(agent);
        return;
      }
    }
    char buffer[8192];
    int got;
    while (agent.ready && (got = SSL_read(agent.ssl, buffer, sizeof buffer)) > 0) {
      agent.answer.append(buffer, static_cast<size_t>(got));
      finish(agent);
    }
    if (agent.ready && !again(agent, got)) {
      ++errors_;
      drop(agent);
    }
  }

  static bool again(const Agent& agent, int result) {
    const int error = SSL_get_error(agent.ssl, result);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
  }

  /// Counts the answer once all of it is there.
  void finish(Agent& agent) {
    const size_t head = agent.answer.find("\r\n\r\n");
    if (head == std::string::npos) return;
    size_t length = 0;
    for (const char* name : {"Content-Length: ", "content-length: "}) {
      const size_t place = agent.answer.find(name);
      if (place < head) length = strtoul(agent.answer.c_str() + place + 16, nullptr, 10);
    }
    if (agent.answer.size() < head + 4 + length) return;
    if (agent.answer.compare(0, 10, "HTTP/1.1 2") != 0) {
      if (errors_++ == 0) fprintf(stderr, "%s\n", agent.answer.c_str());
    }
    latencies_.push_back(clock_.now().value() - agent.sent_at);
    agent.sent_at = 0;
    agent.answer.clear();
    if (period_ == 0) send(static_cast<size_t>(&agent - agents_.data()));
  }

  void send(size_t number) {
    Agent& agent = agents_[number];
    if (!agent.socket) return;
    if (agent.sent_at != 0) {
      ++late_;
      return;
    }
    agent.sent_at = clock_.now().value();
    if (SSL_write(agent.ssl, agent.request.data(), static_cast<int>(agent.request.size())) <= 0) {
      ++errors_;
      drop(agent);
    }
  }

  static void drop(Agent& agent) {
    SSL_free(agent.ssl);
    agent = Agent();
  }

  const Endpoint endpoint_;
  SSL_CTX* const context_;
  const std::string request_;
  std::vector<Agent> agents_;
  const uint64_t period_;
  const int epoll_;
  MonotonicClock clock_;
  std::priority_queue<Wake> wakes_;
  std::vector<uint64_t> latencies_;
  size_t opened_ = 0, ready_ = 0, failed_ = 0, errors_ = 0, late_ = 0;
  uint64_t open_ns_ = 0, beat_ns_ = 0;
};

int start(char** argument) {
  std::signal(SIGPIPE, SIG_IGN);  // a server that hangs up is counted
  const auto endpoint = parseEndpoint(argument[1]);
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  if (!endpoint || SSL_CTX_load_verify_locations(context, argument[2], nullptr) != 1 ||
      SSL_CTX_use_certificate_chain_file(context, argument[3]) != 1 ||
      SSL_CTX_use_PrivateKey_file(context, argument[4], SSL_FILETYPE_PEM) != 1) {
    fprintf(stderr, "fabric_api_load: cannot use the address or the certificates\n");
    ERR_print_errors_fp(stderr);
    return 2;
  }
  std::ifstream file(argument[5]);
  const std::string request{std::istreambuf_iterator<char>(file), {}};
  Load load(*endpoint, context, request, strtoul(argument[6], nullptr, 10),
            strtoul(argument[7], nullptr, 10) * kMillisecond);
  const bool opened = load.open();
  if (opened) load.beat(strtoul(argument[8], nullptr, 10) * 1000 * kMillisecond);
  load.report();
  return opened ? 0 : 1;
}

}  // namespace
}  // namespace tidepool

int main(int argc, char** argv) {
  if (argc != 9) {
    fprintf(stderr,
            "usage: fabric_api_load HOST:PORT CA CERT KEY REQUEST_FILE CONNECTIONS PERIOD_MS "
            "SECONDS\n");
    return 2;
  }
  return tidepool::start(argv);
}
