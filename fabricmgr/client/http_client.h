// SPDX-License-Identifier: Apache-2.0
// Asks a fabric manager over HTTP: Unix socket, or https with certificates. Of several managers one
// is asked until it does not answer, or says that it stands by; then the next is. For the command
// line and agents. Not thread-safe, but for Target::cancelled.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tidepool::client {

/// Where the managers are, and what is shown to them.
struct Target {
  /// Or https://HOST:PORT; several with commas between them.
  std::string address = "unix:/run/tidepool/fabric.sock";
  std::string ca, certificate, key;  // PEM files, for https
  long timeout_seconds = 120;
  std::vector<std::string> headers;              // that go with every request
  const std::atomic<bool>* cancelled = nullptr;  // ends what is under way within a second or two
  std::vector<std::string> unix_headers = {};    // that go with those over Unix sockets, too
  /// What a manager that stands by has read is good enough; otherwise only who leads is asked.
  bool stale = false;
  /// Which of the managers is asked first, by all clients that have this: what one finds out spares
  /// the others connections to those of no use. Null: each for itself. Relaxed: a hint, no more.
  std::shared_ptr<std::atomic<size_t>> place = nullptr;
  /// That one alone is asked, whatever comes of it: another client finds the next one.
  bool stays = false;
};

/// Whether certificates are of use to reach one of the managers.
inline bool usesHttps(const Target& target) {
  return target.address.find("https:") != std::string::npos;
}

struct Reply {
  int status = 0;
  std::string body;
  std::string fabric;  // UUID of who answered, and its term; empty: it does not say
  uint64_t term = 0;
  std::string index;  // as of which the answer is, or a later one; empty: it does not say
  std::string age;    // of a manager that stands by: seconds since that was known to be the latest
  std::string error;  // why there is none, of each manager; empty if there is one
  bool timed_out = false;
  bool refused = false;          // the manager does not take the certificate
  bool of_certificates = false;  // `error` says in words what is wrong with one
};

class HttpClient {
 public:
  /// Throws std::invalid_argument where one of the addresses is none.
  explicit HttpClient(const Target& target);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  Reply get(const std::string& path);
  /// Sends an idempotency key, so that it may be repeated when the connection breaks: it is, once,
  /// and of the next manager.
  Reply post(const std::string& path, const std::string& body, std::vector<std::string> headers);
  /// As post(), by another method: "PATCH", "DELETE". A body that is empty is not sent.
  Reply send(const std::string& method, const std::string& path, const std::string& body,
             std::vector<std::string> headers);
  /// Server-sent events; `take` gets each event's data and returns whether to go on. That a stream
  /// that has begun breaks off is no error.
  Reply stream(const std::string& path, const std::function<bool(const std::string&)>& take);

  /// The next request is another manager's, if there are several: what this one answers is of no
  /// use.
  void passOver();
  /// Asks each of the managers but the one asked last, whatever they answer, so that there is a
  /// connection to whichever is of use next. `milliseconds`: for all of them together.
  void keepOthers(const std::string& path, long milliseconds);

  /// How requests are made: at first as Target says.
  struct Manner {
    long timeout_milliseconds;
    bool stays;  // as Target has it
  };
  /// Those that follow.
  void setManner(const Manner& manner) { manner_ = manner; }

  /// "a b" as "a%20b".
  static std::string escape(const std::string& text);

 private:
  struct Handle;
  struct Place {
    std::string address;  // as it was given
    std::string socket;   // empty: it is reached by https
    std::string base;     // of URLs
  };
  static Place placeOf(const std::string& address);
  void goTo(const Place& place, const std::string& path);
  /// `ask` asks the present manager, and, while it is of no use, the next.
  template <typename Ask>
  Reply askInTurn(Ask ask);
  Reply perform(const std::string& path, const std::string& method, const std::string& body,
                const std::vector<std::string>& headers);
  Reply streamOnce(const std::string& path, const std::function<bool(const std::string&)>& take);

  Target target_;
  Manner manner_;
  std::vector<Place> places_;
  size_t place_ = 0;  // which of them is asked, or was last
  std::unique_ptr<Handle> handle_;
};

}  // namespace tidepool::client
