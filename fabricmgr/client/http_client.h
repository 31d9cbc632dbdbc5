// SPDX-License-Identifier: Apache-2.0
// Asks a fabric manager over HTTP: Unix socket, or https with certificates. For the command line
// and agents. Not thread-safe, but for Target::cancelled.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tidepool::client {

/// Where the manager is, and what is shown to it.
struct Target {
  std::string address = "unix:/run/tidepool/fabric.sock";  // or https://HOST:PORT
  std::string ca, certificate, key;                        // PEM files, for https
  long timeout_seconds = 120;
  std::vector<std::string> headers;              // that go with every request
  const std::atomic<bool>* cancelled = nullptr;  // ends what is under way within a second or two
};

struct Reply {
  int status = 0;
  std::string body;
  std::string fabric;  // UUID of who answered, and its term; empty: it does not say
  uint64_t term = 0;
  std::string error;  // why there is none; empty if there is one
  bool timed_out = false;
  bool refused = false;          // the manager does not take the certificate
  bool of_certificates = false;  // `error` says in words what is wrong with one
};

class HttpClient {
 public:
  /// Throws std::invalid_argument for an address that is none.
  explicit HttpClient(const Target& target);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  Reply get(const std::string& path);
  /// Sends an idempotency key, so that it may be repeated when the connection breaks: once, it is.
  Reply post(const std::string& path, const std::string& body, std::vector<std::string> headers);
  /// As post(), by another method: "PATCH", "DELETE". A body that is empty is not sent.
  Reply send(const std::string& method, const std::string& path, const std::string& body,
             std::vector<std::string> headers);
  /// Server-sent events; `take` gets each event's data and returns whether to go on.
  Reply stream(const std::string& path, const std::function<bool(const std::string&)>& take);

  /// "a b" as "a%20b".
  static std::string escape(const std::string& text);

 private:
  struct Handle;
  /// Without a method it is a GET.
  Reply perform(const std::string& path, const std::string& method, const std::string& body,
                const std::vector<std::string>& headers);

  Target target_;
  std::unique_ptr<Handle> handle_;
};

}  // namespace tidepool::client
