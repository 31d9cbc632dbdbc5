// SPDX-License-Identifier: Apache-2.0
// Many agents of a fabric with several managers, in one thread: each has a certificate and an
// address of its own, joins, renews its lease, and waits for events, as fabricmgr/agent does; a
// manager that does not answer, or stands by, is passed over. What they have met is printed. Agents
// have processors of their own, and this is one thread: so only some of its handshakes are under
// way at once, and the time that an agent gives a manager begins with its handshake.
//   many_agents CA_FOLDER AGENTS LEASE_SECONDS HOST:PORT[,HOST:PORT...]
// Reads lines: "mark" forgets what was counted, "report" prints it as JSON; ends with its input.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fabricmgr/ca/certificates.h"
#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"
#include "runtime/transport/connection.h"

namespace tidepool {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kSecond = 1000 * kMillisecond;
// As fabricmgr/agent/contact.cc, manager_link.cc and client/http_client.cc have them.
constexpr uint64_t kFirstPause = 200 * kMillisecond;
constexpr uint64_t kLongestPause = 5 * kSecond;
constexpr uint64_t kFollowed = 3 * kSecond;
constexpr uint64_t kConnect = 3 * kSecond;
constexpr uint64_t kMarginPart = 8;
constexpr size_t kOpening = 64;  // handshakes under way
constexpr const char* kStandingBy = "urn:tidepool:problem:standing-by";

uint64_t now() { return kMonotonicClock.now().value(); }

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

uint64_t numberIn(const std::string& body, const char* name) {
  const std::string field = std::string("\"") + name + "\":";
  const size_t at = body.find(field);
  return at == std::string::npos ? 0 : strtoull(body.c_str() + at + field.size(), nullptr, 10);
}

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
  void whenRoom(std::function<void()> begin) {
    waiting_.push_back(std::move(begin));
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
    while (opening_ < kOpening && !waiting_.empty()) {
      ++opening_;
      const auto begin = std::move(waiting_.front());
      waiting_.pop_front();
      begin();
    }
  }

  const std::vector<Place> places_;
  const Owned<SSL_CTX> context_;
  const UniqueFd epoll_;
  std::priority_queue<Due> due_;
  uint64_t next_ = 0;
  size_t opening_ = 0;
  std::deque<std::function<void()>> waiting_;
  std::minstd_rand random_{1};
};

/// A connection to one manager; one request at a time.
class Link {
 public:
  Link(Fleet& fleet, const Identity& identity, const std::string& source)
      : fleet_(fleet), identity_(identity), source_(source), ready_([this] { advance(); }) {}

  bool isOpen() const { return fd_.valid() && handshaken_; }
  using Done = std::function<void(const Answer& answer)>;
  void ask(const Place& place, const std::string& request, uint64_t timeout, Done done) {
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
    fleet_.whenRoom([this, serial = serial_] {
      opening_ = true;
      if (serial != serial_ || !done_) return opened();
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
  std::string request_, answer_;
  size_t written_ = 0;
  uint64_t serial_ = 0, connection_ = 0, timeout_ = 0;
  Done done_;
};

/// Asks one manager after the other, or that at `place` alone, as client::HttpClient; keeps a
/// connection to each.
class Client {
 public:
  enum class Turns : uint8_t { kYes, kNo };

  Client(Fleet& fleet, const Identity& identity, const std::string& source, size_t* place,
         Turns turns)
      : fleet_(fleet), place_(*place), turns_(turns) {
    for (size_t i = 0; i < fleet.places().size(); ++i) {
      links_.push_back(std::make_unique<Link>(fleet, identity, source));
    }
  }
  void ask(const char* method, const std::string& path, const std::string& body, uint64_t timeout,
           Link::Done done) {
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
    done_ = std::move(done);
    tried_ = 0;
    askOne();
  }

 private:
  void askOne() {
    links_[place_]->ask(fleet_.places()[place_], request_, timeout_,
                        [this](const Answer& answer) { onAnswer(answer); });
  }
  void onAnswer(const Answer& answer) {
    const bool stands_by =
        answer.status == 503 && answer.body.find(kStandingBy) != std::string::npos;
    if (answer.status != 0 && !stands_by) return done_(answer);
    if (turns_ == Turns::kNo) return done_({});
    place_ = (place_ + 1) % links_.size();
    if (++tried_ < links_.size()) return askOne();
    done_({});
  }

  Fleet& fleet_;
  std::vector<std::unique_ptr<Link>> links_;
  size_t& place_;  // which of them is asked; the heartbeat's client finds the next
  const Turns turns_;
  size_t tried_ = 0;
  std::string request_;
  uint64_t timeout_ = 0;
  Link::Done done_;
};

class Agent {
 public:
  Agent(Fleet& fleet, size_t number, Identity identity, uint64_t lease)
      : fleet_(fleet),
        name_("n" + std::to_string(number)),
        source_("127.1." + std::to_string(number / 250) + "." + std::to_string(number % 250 + 1)),
        identity_(std::move(identity)),
        asked_for_(lease),
        heart_(fleet, identity_, source_, &place_, Client::Turns::kYes),
        watch_(fleet, identity_, source_, &place_, Client::Turns::kNo),
        list_(fleet, identity_, source_, &place_, Client::Turns::kNo) {}

  void beat() {
    if (std::exchange(beating_, true)) return;
    const uint64_t asked = now();
    if (began_ == 0) began_ = asked;
    heart_.ask("POST", "/v1/hosts/" + name_ + "/heartbeat", "{}", 5 * kSecond,
               [this, asked](const Answer& answer) { onBeat(answer, asked); });
  }
  bool isMember(uint64_t since) const { return renewed_ >= since; }
  uint64_t leaseUntil() const { return until_; }
  bool watches() const { return watching_; }

 private:
  void beatAfter(uint64_t wait) {
    beat_at_ = now() + wait;
    const uint64_t serial = ++serial_;
    fleet_.after(wait, [this, serial] {
      if (serial == serial_) beat();
    });
  }
  void beatSoon() {
    const uint64_t spread = std::min(kLongestPause, lease_ / 6);
    const uint64_t wait = std::min(kFollowed, lease_ / 10) + spread / 1000 * fleet_.random(1000);
    if (!beating_ && now() + wait < beat_at_) beatAfter(wait);
  }
  void onBeat(const Answer& answer, uint64_t asked) {
    beating_ = false;
    if (answer.status == 404 && renewed_ == 0) return join();
    if (answer.status != 200) return missed(answer);
    const uint64_t time = now();
    const uint64_t lease = numberIn(answer.body, "lease_left_ms") * kMillisecond;
    if (until_ != 0 && time > until_) ++fleet_.counts.lapsed;
    if (renewed_ != 0) {
      fleet_.counts.longest_gap = std::max(fleet_.counts.longest_gap, time - renewed_);
    }
    fleet_.counts.beats.push_back(time - std::exchange(began_, 0));
    lease_ = lease;
    until_ = asked + (lease - lease / kMarginPart);
    renewed_ = time;
    pause_ = kFirstPause;
    const uint64_t soon = std::max((until_ - std::min(until_, time)) / 2, kFirstPause);
    beatAfter(fleet_.jittered(std::min(lease / 3, soon)));
    const uint64_t modified = numberIn(answer.body, "modified");
    const bool list = std::exchange(away_, false) || modified != std::exchange(modified_, modified);
    if (list) relist();
    if (!watching_) watch();
  }
  void missed(const Answer& answer) {
    ++(answer.status == 0 ? fleet_.counts.missed : fleet_.counts.refused);
    away_ = true;
    beatAfter(fleet_.jittered(pause_));
    const uint64_t longest = lease_ == 0 ? kLongestPause : std::min(kLongestPause, lease_ / 3);
    pause_ = std::min(pause_ * 2, std::max(longest, kFirstPause));
  }
  void join() {
    const std::string body = "{\"name\":\"" + name_ +
                             "\",\"lease_ms\":" + std::to_string(asked_for_ / kMillisecond) + "}";
    beating_ = true;
    heart_.ask("POST", "/v1/hosts", body, 5 * kSecond, [this](const Answer& answer) {
      beating_ = false;
      if (answer.status / 100 == 2 || answer.status == 409) return beat();
      missed(answer);
    });
  }
  void watch() {
    watching_ = true;
    const std::string from =
        watched_ == 0 ? "" : "&since=" + std::to_string(watched_) + "&wait_ms=25000";
    watch_.ask("GET", "/v1/events?host=" + name_ + from, "", 40 * kSecond,
               [this](const Answer& answer) { onEvents(answer); });
  }
  void onEvents(const Answer& answer) {
    const uint64_t index = answer.status == 200 ? numberIn(answer.body, "index") : 0;
    if (index != 0) {
      const bool any = answer.body.find("\"items\":[]") == std::string::npos;
      if (std::exchange(watched_, index) == 0 || any) relist();
      return watch();
    }
    watched_ = 0;
    if (away_ || answer.status == 0) {
      watching_ = false;
      if (!away_) beatSoon();
      return;
    }
    relist();
    fleet_.after(fleet_.jittered(kFirstPause * 5), [this] { watch(); });
  }
  void relist() {
    if (std::exchange(listing_, true)) return;
    list_.ask("GET", "/v1/regions?host=" + name_ + "&limit=10000", "", 20 * kSecond,
              [this](const Answer&) { listing_ = false; });
  }

  Fleet& fleet_;
  const std::string name_, source_;
  const Identity identity_;
  const uint64_t asked_for_;
  size_t place_ = 0;
  Client heart_, watch_, list_;
  uint64_t lease_ = 0, until_ = 0, renewed_ = 0, began_ = 0, modified_ = 0, watched_ = 0;
  uint64_t pause_ = kFirstPause, beat_at_ = 0, serial_ = 0;
  bool beating_ = false, away_ = false, watching_ = false, listing_ = false;
};

double atRank(const std::vector<uint64_t>& sorted, double rank) {
  if (sorted.empty()) return 0;
  return static_cast<double>(
             sorted[static_cast<size_t>(rank * static_cast<double>(sorted.size() - 1))]) /
         1e6;
}

class Program {
 public:
  explicit Program(Fleet& fleet) : fleet_(fleet) {}

  void begin(const std::string& ca, size_t count, uint64_t lease) {
    for (size_t i = 0; i < count; ++i) {
      agents_.push_back(std::make_unique<Agent>(fleet_, i, identityOf(ca, i), lease));
      // Not in step: machines are not started in the same moment.
      fleet_.after(lease / 3 * i / count, [agent = agents_.back().get()] { agent->beat(); });
    }
  }
  void run() {
    std::function<void()> input = [this] { read(); };
    fleet_.watchInput(&input);
    while (!over_) fleet_.runOnce();
  }

 private:
  static Identity identityOf(const std::string& ca, size_t number) {
    ca::Issue issue;
    issue.kind = "host";
    issue.name = "n" + std::to_string(number);
    issue.valid_seconds = 365 * 86'400;
    const auto made = ca::makeCertificate({ca + "/ca.crt", ca + "/ca.key"}, issue);
    if (!made) {
      fprintf(stderr, "many_agents: %s\n", made.error().text());
      exit(2);
    }
    const auto memory = [](const std::string& text) {
      return std::unique_ptr<BIO, decltype(&BIO_free_all)>(
          BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free_all);
    };
    return {
        Owned<X509>(PEM_read_bio_X509(memory(made->certificate).get(), nullptr, nullptr, nullptr)),
        Owned<EVP_PKEY>(
            PEM_read_bio_PrivateKey(memory(made->key).get(), nullptr, nullptr, nullptr))};
  }
  void read() {
    char buffer[256];
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (got <= 0) over_ = true;
    for (ssize_t i = 0; i < got; ++i) {
      if (buffer[i] != '\n') {
        line_ += buffer[i];
        continue;
      }
      if (line_ == "mark") mark();
      if (line_ == "report") report();
      line_.clear();
    }
  }
  void mark() {
    fleet_.counts = {};
    marked_ = now();
  }
  void report() {
    auto& beats = fleet_.counts.beats;
    std::sort(beats.begin(), beats.end());
    size_t renewed = 0, running = 0, watching = 0;
    for (const auto& agent : agents_) {
      renewed += agent->isMember(std::max<uint64_t>(marked_, 1)) ? 1 : 0;
      running += agent->leaseUntil() > now() ? 1 : 0;
      watching += agent->watches() ? 1 : 0;
    }
    printf(
        "{\"agents\":%zu,\"renewed\":%zu,\"running\":%zu,\"watching\":%zu,\"lapsed\":%zu,"
        "\"seconds\":%.2f,\"beats\":%zu,\"p50_ms\":%.1f,\"p99_ms\":%.1f,\"max_ms\":%.1f,"
        "\"missed\":%zu,\"refused\":%zu,\"handshakes\":%zu,\"longest_gap_ms\":%.0f}\n",
        agents_.size(), renewed, running, watching, fleet_.counts.lapsed,
        static_cast<double>(now() - marked_) / 1e9, beats.size(), atRank(beats, 0.5),
        atRank(beats, 0.99), atRank(beats, 1), fleet_.counts.missed, fleet_.counts.refused,
        fleet_.counts.handshakes, static_cast<double>(fleet_.counts.longest_gap) / 1e6);
    fflush(stdout);
  }

  Fleet& fleet_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::string line_;
  uint64_t marked_ = 0;
  bool over_ = false;
};

std::vector<Place> placesOf(const std::string& text) {
  std::vector<Place> places;
  for (size_t from = 0, end = 0; end != std::string::npos; from = end + 1) {
    end = text.find(',', from);
    const auto endpoint = parseEndpoint(text.substr(from, end - from).c_str());
    Place place;
    place.address.sin_family = AF_INET;
    if (!endpoint || inet_pton(AF_INET, endpoint->host, &place.address.sin_addr) != 1) return {};
    place.host = endpoint->host;
    place.address.sin_port = htons(static_cast<uint16_t>(atoi(endpoint->port)));
    places.push_back(place);
  }
  return places;
}

int start(char** argument) {
  std::signal(SIGPIPE, SIG_IGN);
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  const rlimit more = {65536, 65536};  // root may have them
  files.rlim_cur = files.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &more) != 0) setrlimit(RLIMIT_NOFILE, &files);
  const std::string ca = argument[1];
  Owned<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  std::vector<Place> places = placesOf(argument[4]);
  if (places.empty() ||
      SSL_CTX_load_verify_locations(context.get(), (ca + "/ca.crt").c_str(), nullptr) != 1) {
    fprintf(stderr, "many_agents: cannot use the addresses or %s/ca.crt\n", ca.c_str());
    return 2;
  }
  Fleet fleet(std::move(context), std::move(places));
  Program program(fleet);
  program.begin(ca, strtoul(argument[2], nullptr, 10), strtoul(argument[3], nullptr, 10) * kSecond);
  program.run();
  return 0;
}

}  // namespace
}  // namespace tidepool

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: many_agents CA_FOLDER AGENTS LEASE_SECONDS HOST:PORT[,HOST:PORT...]\n");
    return 2;
  }
  return tidepool::start(argv);
}
