// SPDX-License-Identifier: Apache-2.0
// Asks a fabric manager over HTTP: Unix socket, or https with certificates. Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tidepool::cli {

/// Where the manager is, and what is shown to it.
struct Target {
  std::string address = "unix:/run/tidepool/fabric.sock";  // or https://HOST:PORT
  std::string ca, certificate, key;                        // PEM files, for https
  long timeout_seconds = 120;
};

struct Reply {
  int status = 0;
  std::string body;
  std::string error;  // why there is none; empty if there is one
  bool timed_out = false;
};

class Client {
 public:
  /// Throws std::invalid_argument for an address that is none.
  explicit Client(const Target& target);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Reply get(const std::string& path);
  /// Sends an idempotency key, so that it may be repeated when the connection breaks: once, it is.
  Reply post(const std::string& path, const std::string& body, std::vector<std::string> headers);
  /// Server-sent events; `take` gets each event's data and returns whether to go on.
  Reply stream(const std::string& path, const std::function<bool(const std::string&)>& take);

  /// "a b" as "a%20b".
  static std::string escape(const std::string& text);

 private:
  struct Handle;
  Reply perform(const std::string& path, const std::string* body,
                const std::vector<std::string>& headers);

  Target target_;
  std::unique_ptr<Handle> handle_;
};

}  // namespace tidepool::cli
