// SPDX-License-Identifier: Apache-2.0
// Many agents of a fabric with several managers, in one thread: each has a certificate and an
// address of its own, joins, renews its lease, and waits for events, as fabricmgr/agent does; a
// manager that does not answer, or stands by, is passed over. What they have met is printed. Agents
// have processors of their own, and this is one thread: so only some of its handshakes are under
// way at once, and the time that an agent gives a manager begins with its handshake.
//   many_agents CA_FOLDER AGENTS LEASE_SECONDS HOST:PORT[,HOST:PORT...]
// Reads lines: "mark" forgets what was counted, "report" prints it as JSON; ends with its input.
#include <arpa/inet.h>
#include <openssl/pem.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fabricmgr/ca/certificates.h"
#include "runtime/transport/connection.h"
#include "tests/fabricmgr/fleet.h"

namespace tidepool {
namespace {

// As fabricmgr/agent/contact.cc has them.
constexpr uint64_t kFirstPause = 200 * kMillisecond;
constexpr uint64_t kLongestPause = 5 * kSecond;
constexpr uint64_t kFollowed = 3 * kSecond;
constexpr uint64_t kMarginPart = 8;
constexpr uint64_t kOthersEvery = 30 * kSecond;

class Agent {
 public:
  Agent(Fleet& fleet, size_t number, Identity identity, uint64_t lease)
      : fleet_(fleet),
        name_("n" + std::to_string(number)),
        source_("127.1." + std::to_string(number / 250) + "." + std::to_string(number % 250 + 1)),
        identity_(std::move(identity)),
        asked_for_(lease),
        watch_(fleet, identity_, source_, &place_, Room::kLast) {}

  void beat() {
    if (std::exchange(beating_, true)) return;
    const uint64_t asked = now();
    if (began_ == 0) began_ = asked;
    ask({"POST", "/v1/hosts/" + name_ + "/heartbeat", "{}", 5 * kSecond, Client::Turns::kYes},
        [this, asked](const Answer& answer) { onBeat(answer, asked); });
  }
  bool isMember(uint64_t since) const { return told_ >= since; }
  uint64_t leaseUntil() const { return until_; }
  bool watches() const { return watching_; }
  bool hasAllConnections() const { return !idle_.empty() && idle_.back()->hasAllConnections(); }

 private:
  std::unique_ptr<Client> takeClient() {
    if (idle_.empty()) {
      return std::make_unique<Client>(fleet_, identity_, source_, &place_, Room::kFirst);
    }
    auto client = std::move(idle_.back());
    idle_.pop_back();
    return client;
  }
  /// Heartbeats and lists share connections, as in ManagerLink.
  void ask(const Client::Question& question, Link::Done done) {
    auto client = std::make_shared<std::unique_ptr<Client>>(takeClient());
    (*client)->ask(question, [this, client, done = std::move(done)](const Answer& answer) {
      idle_.push_back(std::move(*client));
      done(answer);
    });
  }
  void beatAfter(uint64_t wait) {
    beat_at_ = now() + wait;
    const uint64_t serial = ++serial_;
    fleet_.after(wait, [this, serial] {
      if (serial == serial_) beat();
    });
  }
  uint64_t spread() { return std::min(kLongestPause, lease_ / 6) / 1000 * fleet_.random(1000); }
  void beatSoon() {
    const uint64_t wait = std::min(kFollowed, lease_ / 10) + spread();
    if (!beating_ && now() + wait < beat_at_) beatAfter(wait);
  }
  void onBeat(const Answer& answer, uint64_t asked) {
    beating_ = false;
    if (answer.status == 404 && renewed_ == 0) return join();
    if (answer.status != 200) return missed(answer);
    const uint64_t time = now();
    const uint64_t lease = numberIn(answer.body, "lease_left_ms") * kMillisecond;
    if (renewed_ != 0) {
      fleet_.counts.longest_gap = std::max(fleet_.counts.longest_gap, time - renewed_);
    }
    fleet_.counts.beats.push_back(time - std::exchange(began_, 0));
    lease_ = lease;
    renewal_ = asked + (lease - lease / kMarginPart);
    const bool first = std::exchange(renewed_, time) == 0;
    pause_ = kFirstPause;
    const uint64_t soon = std::max((renewal_ - std::min(renewal_, time)) / 2, kFirstPause);
    beatAfter(fleet_.jittered(std::min(lease / 3, soon)));
    const uint64_t modified = numberIn(answer.body, "modified");
    const bool list = std::exchange(away_, false) || modified != std::exchange(modified_, modified);
    if (list) relist();
    renewPrograms();
    if (!std::exchange(watching_, true)) fleet_.after(first ? 0 : spread(), [this] { watch(); });
    askOthers();
  }
  /// What was taken from them meanwhile they hear of first.
  void renewPrograms() {
    if (listing_ || modified_ == 0 || renewal_ == 0) return;
    const uint64_t time = now();
    if (until_ != 0 && time > until_) ++fleet_.counts.lapsed;
    until_ = std::exchange(renewal_, 0);
    told_ = time;
  }
  void askOthers() {
    const uint64_t every = std::min(kOthersEvery, lease_), time = now();
    const bool first = others_at_ == 0;
    if (idle_.empty() || (!first && time < others_at_)) return;
    others_at_ = time + (first ? every / 1000 * fleet_.random(1000) : fleet_.jittered(every));
    if (first || lease_ / 3 > kOthersEvery) return;
    idle_.back()->askOthers("/v1/hosts/" + name_, lease_ / 6);
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
    ask({"POST", "/v1/hosts", body, 5 * kSecond, Client::Turns::kYes},
        [this](const Answer& answer) {
          beating_ = false;
          if (answer.status / 100 == 2 || answer.status == 409) return beat();
          missed(answer);
        });
  }
  void watch() {
    const std::string from =
        watched_ == 0 ? "" : "&since=" + std::to_string(watched_) + "&wait_ms=25000";
    watch_.ask({"GET", "/v1/events?host=" + name_ + from, "", 40 * kSecond, Client::Turns::kNo},
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
    ask({"GET", "/v1/regions?host=" + name_ + "&limit=10000", "", 20 * kSecond, Client::Turns::kNo},
        [this](const Answer& answer) {
          listing_ = false;
          if (answer.status != 200) modified_ = 0;  // the next heartbeat asks for it again
          renewPrograms();
        });
  }

  Fleet& fleet_;
  const std::string name_, source_;
  const Identity identity_;
  const uint64_t asked_for_;
  size_t place_ = 0;
  Client watch_;
  std::vector<std::unique_ptr<Client>> idle_;  // of what is asked else
  uint64_t lease_ = 0, renewal_ = 0, until_ = 0, told_ = 0, renewed_ = 0, began_ = 0, modified_ = 0,
           watched_ = 0;
  uint64_t pause_ = kFirstPause, beat_at_ = 0, others_at_ = 0, serial_ = 0;
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
    size_t renewed = 0, running = 0, watching = 0, ready = 0;
    for (const auto& agent : agents_) {
      renewed += agent->isMember(std::max<uint64_t>(marked_, 1)) ? 1 : 0;
      running += agent->leaseUntil() > now() ? 1 : 0;
      watching += agent->watches() ? 1 : 0;
      ready += agent->hasAllConnections() ? 1 : 0;
    }
    printf(
        "{\"agents\":%zu,\"renewed\":%zu,\"running\":%zu,\"watching\":%zu,\"ready\":%zu,\"lapsed\":"
        "%zu,"
        "\"seconds\":%.2f,\"beats\":%zu,\"p50_ms\":%.1f,\"p99_ms\":%.1f,\"max_ms\":%.1f,"
        "\"missed\":%zu,\"refused\":%zu,\"handshakes\":%zu,\"longest_gap_ms\":%.0f}\n",
        agents_.size(), renewed, running, watching, ready, fleet_.counts.lapsed,
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
