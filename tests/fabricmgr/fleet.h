// SPDX-License-Identifier: Apache-2.0
// What many_agents.cc's agents have in common: one loop, what is counted, connections to managers,
// and who asks over them. One thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"

namespace tidepool {

inline constexpr uint64_t kMillisecond = 1'000'000;
inline constexpr uint64_t kSecond = 1000 * kMillisecond;
inline constexpr uint64_t kConnect = 3 * kSecond;  // as client/http_client.cc has it
inline constexpr size_t kOpening = 64;             // handshakes under way
inline constexpr const char* kStandingBy = "urn:tidepool:problem:standing-by";

inline uint64_t now() { return kMonotonicClock.now().value(); }

struct SslFree {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(X509* one) const { X509_free(one); }
  void operator()(EVP_PKEY* one) const { EVP_PKEY_free(one); }
};
template <typename T>
using Owned = std::unique_ptr<T, SslFree>;

struct Identity {
  Owned<X509> certificate;
  Owned<EVP_PKEY> key;
};

struct Place {
  std::string host;
  sockaddr_in address = {};
};

struct Answer {
  int status = 0;  // 0: none
  std::string body;
};

inline uint64_t numberIn(const std::string& body, const char* name) {
  const std::string field = std::string("\"") + name + "\":";
  const size_t at = body.find(field);
  return at == std::string::npos ? 0 : strtoull(body.c_str() + at + field.size(), nullptr, 10);
}

/// Whose handshakes begin first: those that leases wait for. On machines of their own none would
/// wait for another.
enum class Room : uint8_t { kFirst, kLast };

/// What all agents have in common: the loop, where managers are, and what is counted.
class Fleet {
 public:
  Fleet(Owned<SSL_CTX> context, std::vector<Place> places)
      : places_(std::move(places)),
        context_(std::move(context)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

  struct Counts {
    std::vector<uint64_t> beats;  // ns from the first try to the answer
    uint64_t missed = 0;          // rounds in which no manager answered
    uint64_t lapsed = 0;          // leases that ended before they were renewed, as agents count
    uint64_t handshakes = 0;
    uint64_t longest_gap = 0;  // ns between two renewals of one agent
    uint64_t refused = 0;      // answers that were none of a lease, nor of one that stands by
  };

  void after(uint64_t wait, std::function<void()> work) {
    due_.push({now() + wait, next_++, std::move(work)});
  }
  void runOnce() {
    epoll_event events[256];
    const uint64_t time = now();
    const uint64_t wait = due_.empty() || due_.top().at > time + kSecond
                              ? 1000
                              : (due_.top().at - std::min(time, due_.top().at)) / kMillisecond;
    const int count = epoll_wait(epoll_.get(), events, 256, static_cast<int>(wait));
    for (int i = 0; i < count; ++i) (*static_cast<std::function<void()>*>(events[i].data.ptr))();
    while (!due_.empty() && due_.top().at <= now()) {
      const auto work = std::move(const_cast<Due&>(due_.top()).work);
      due_.pop();
      work();
    }
  }
  /// `ready` is called, edge-triggered, for as long as the descriptor is open.
  void watch(int fd, std::function<void()>* ready) const {
    epoll_event event = {EPOLLIN | EPOLLOUT | EPOLLET, {.ptr = ready}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  }
  void watchInput(std::function<void()>* ready) const {
    epoll_event event = {EPOLLIN, {.ptr = ready}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, STDIN_FILENO, &event);
  }
  /// Begins a handshake, now or when others are over; each is followed by handshakeOver().
  void whenRoom(Room room, std::function<void()> begin) {
    waiting_[static_cast<size_t>(room)].push_back(std::move(begin));
    beginNext();
  }
  void handshakeOver() {
    --opening_;
    after(0, [this] { beginNext(); });
  }
  uint64_t random(uint64_t below) { return random_() % below; }
  uint64_t jittered(uint64_t time) { return time / 100 * (80 + random_() % 21); }

  const std::vector<Place>& places() const { return places_; }
  SSL_CTX* context() const { return context_.get(); }
  Counts counts;

 private:
  struct Due {
    uint64_t at, order;
    std::function<void()> work;
    bool operator<(const Due& other) const {
      return at != other.at ? at > other.at : order > other.order;  // earliest on top
    }
  };
  void beginNext() {
    for (auto& some : waiting_) {
      while (opening_ < kOpening && !some.empty()) {
        ++opening_;
        const auto begin = std::move(some.front());
        some.pop_front();
        begin();
      }
    }
  }

  const std::vector<Place> places_;
  const Owned<SSL_CTX> context_;
  const UniqueFd epoll_;
  std::priority_queue<Due> due_;
  uint64_t next_ = 0;
  size_t opening_ = 0;
  std::array<std::deque<std::function<void()>>, 2> waiting_;  // by Room
  std::minstd_rand random_{1};
};

/// A connection to one manager; one request at a time: another one takes its place.
class Link {
 public:
  Link(Fleet& fleet, const Identity& identity, const std::string& source)
      : fleet_(fleet), identity_(identity), source_(source), ready_([this] { advance(); }) {}

  bool isOpen() const { return fd_.valid() && handshaken_; }
  bool isBusy() const { return done_ != nullptr; }
  using Done = std::function<void(const Answer& answer)>;
  void ask(const Place& place, const std::string& request, uint64_t timeout, Room room, Done done) {
    if (done_) close();  // its answer could be taken for this one's
    room_ = room;
    request_ = request;
    answer_.clear();
    written_ = 0;
    done_ = std::move(done);
    timeout_ = timeout;
    place_ = &place;
    ++serial_;
    again_ = isOpen();  // the manager may have closed it meanwhile
    again_ ? begin() : open();
  }

 private:
  void open() {
    fleet_.whenRoom(room_, [this, serial = serial_] {
      if (serial != serial_ || !done_) return fleet_.handshakeOver();
      opening_ = true;
      if (!connect(*place_)) return finish({});
      begin();
    });
  }
  void opened() {
    if (std::exchange(opening_, false)) fleet_.handshakeOver();
  }
  void begin() {
    fleet_.after(timeout_, [this, serial = serial_] {
      if (serial == serial_ && done_) finish({});
    });
    advance();
  }
  bool connect(const Place& place) {
    fd_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd_.valid()) return false;
    const int on = 1;
    (void)setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd_.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    sockaddr_in from = {};
    from.sin_family = AF_INET;
    inet_pton(AF_INET, source_.c_str(), &from.sin_addr);
    if (bind(fd_.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from) != 0) return false;
    const auto* to = reinterpret_cast<const sockaddr*>(&place.address);
    if (::connect(fd_.get(), to, sizeof place.address) != 0 && errno != EINPROGRESS) return false;
    ssl_.reset(SSL_new(fleet_.context()));
    SSL_use_certificate(ssl_.get(), identity_.certificate.get());
    SSL_use_PrivateKey(ssl_.get(), identity_.key.get());
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), place.host.c_str());
    SSL_set_fd(ssl_.get(), fd_.get());
    SSL_set_connect_state(ssl_.get());
    const uint64_t connection = ++connection_;
    fleet_.after(kConnect, [this, connection] {
      if (connection == connection_ && !handshaken_ && done_) broken();
    });
    fleet_.watch(fd_.get(), &ready_);
    return true;
  }
  void close() {
    ssl_.reset();
    fd_.reset(-1);
    handshaken_ = false;
    ++connection_;
    opened();
  }
  void broken() {
    close();
    if (!done_) return;
    if (again_ && answer_.empty()) {
      again_ = false;
      written_ = 0;
      return open();
    }
    finish({});
  }
  void advance() {
    if (!fd_.valid()) return;
    ERR_clear_error();  // of other connections: SSL_get_error() would take it for this one's
    if (!handshaken_) {
      const int result = SSL_do_handshake(ssl_.get());
      if (result != 1) {
        if (!goesOn(result)) broken();
        return;
      }
      handshaken_ = true;
      opened();
      ++fleet_.counts.handshakes;
    }
    if (done_ && written_ == 0) {
      const int wrote = SSL_write(ssl_.get(), request_.data(), static_cast<int>(request_.size()));
      if (wrote > 0) written_ = static_cast<size_t>(wrote);
      if (wrote <= 0 && !goesOn(wrote)) return broken();
    }
    char buffer[16384];
    int got;
    while ((got = SSL_read(ssl_.get(), buffer, sizeof buffer)) > 0) {
      answer_.append(buffer, static_cast<size_t>(got));
    }
    const bool ended = !goesOn(got);
    if (!take()) return ended ? broken() : void();
    if (ended) close();
  }
  bool goesOn(int result) const {
    const int error = SSL_get_error(ssl_.get(), result);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
  }
  /// Whether the answer was there as a whole.
  bool take() {
    const size_t head = answer_.find("\r\n\r\n");
    if (!done_ || head == std::string::npos) return false;
    constexpr std::string_view kLength = "Content-Length: ";
    const size_t at = answer_.find(kLength);
    const size_t length =
        at < head ? strtoull(answer_.c_str() + at + kLength.size(), nullptr, 10) : 0;
    if (answer_.size() < head + 4 + length) return false;
    if (answer_.find("Connection: close") < head) close();
    finish({atoi(answer_.c_str() + 9), answer_.substr(head + 4)});
    return true;
  }
  void finish(const Answer& answer) {
    if (answer.status == 0) close();
    ++serial_;
    const Done done = std::exchange(done_, nullptr);
    // The loop first: what is done may ask on, and this may be deep within its last question.
    fleet_.after(0, [done, answer] { done(answer); });
  }

  Fleet& fleet_;
  const Identity& identity_;
  const std::string& source_;
  std::function<void()> ready_;
  UniqueFd fd_;
  Owned<SSL> ssl_;
  bool handshaken_ = false, again_ = false, opening_ = false;
  const Place* place_ = nullptr;
  Room room_ = Room::kFirst;
  std::string request_, answer_;
  size_t written_ = 0;
  uint64_t serial_ = 0, connection_ = 0, timeout_ = 0;
  Done done_;
};

/// Asks one manager after the other, or that at `place` alone, as client::HttpClient; keeps a
/// connection to each. One request at a time.
class Client {
 public:
  enum class Turns : uint8_t { kYes, kNo };
  struct Question {
    const char* method;
    std::string path, body;
    uint64_t timeout;
    Turns turns;
  };

  Client(Fleet& fleet, const Identity& identity, const std::string& source, size_t* place,
         Room room)
      : fleet_(fleet), place_(*place), room_(room) {
    for (size_t i = 0; i < fleet.places().size(); ++i) {
      links_.push_back(std::make_unique<Link>(fleet, identity, source));
    }
  }
  void ask(const Question& question, Link::Done done) {
    const auto& [method, path, body, timeout, turns] = question;
    const std::string& host = fleet_.places()[place_].host;
    request_ = std::string(method) + " " + path + " HTTP/1.1\r\nHost: " + host +
               "\r\nCache-Control: no-cache\r\n";
    if (!body.empty()) {
      request_ +=
          "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
          "\r\n";
    }
    request_ += "\r\n" + body;
    timeout_ = timeout;
    turns_ = turns;
    done_ = std::move(done);
    tried_ = 0;
    askOne();
  }
  /// Whatever they answer; beside what else is asked.
  void askOthers(const std::string& path, uint64_t timeout) {
    const std::string request =
        "GET " + path + " HTTP/1.1\r\nHost: x\r\nCache-Control: no-cache\r\n\r\n";
    for (size_t i = 0; i < links_.size(); ++i) {
      if (i == place_ || links_[i]->isBusy()) continue;
      links_[i]->ask(fleet_.places()[i], request, timeout, Room::kLast, [](const Answer&) {});
    }
  }
  bool hasAllConnections() const {
    return std::all_of(links_.begin(), links_.end(),
                       [](const auto& link) { return link->isOpen(); });
  }

 private:
  void askOne() {
    links_[place_]->ask(fleet_.places()[place_], request_, timeout_, room_,
                        [this](const Answer& answer) { onAnswer(answer); });
  }
  void onAnswer(const Answer& answer) {
    const bool stands_by =
        answer.status == 503 && answer.body.find(kStandingBy) != std::string::npos;
    if (answer.status != 0 && !stands_by) return finish(answer);
    if (turns_ == Turns::kNo) return finish({});
    place_ = (place_ + 1) % links_.size();
    if (++tried_ < links_.size()) return askOne();
    finish({});
  }
  /// Who is answered may ask again at once.
  void finish(const Answer& answer) { std::exchange(done_, nullptr)(answer); }

  Fleet& fleet_;
  std::vector<std::unique_ptr<Link>> links_;
  size_t& place_;  // which of them is asked; heartbeats find the next
  const Room room_;
  Turns turns_ = Turns::kYes;
  size_t tried_ = 0;
  std::string request_;
  uint64_t timeout_ = 0;
  Link::Done done_;
};

}  // namespace tidepool
