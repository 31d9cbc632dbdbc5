// SPDX-License-Identifier: Apache-2.0
// Between HTTP and the manager: finds the route, checks role, parameters and body, has the handler
// do it, counts and logs. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "fabricmgr/api/http_server.h"
#include "fabricmgr/api/metrics.h"
#include "fabricmgr/api/routes.h"
#include "fabricmgr/api/watch_hub.h"
#include "fabricmgr/expiry.h"
#include "fabricmgr/manager/manager.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"

namespace tidepool::api {

class Service final : public HttpHandler {
 public:
  /// `log` gets lines about what was refused and what failed, and, for changes, what was done.
  enum class Level : uint8_t { kDebug, kInfo, kWarning, kError };
  using Log = std::function<void(Level, const std::string&)>;

  Service(fabric::Manager& manager, const Clock& clock, std::string version, Log log);

  Lane laneOf(const Request& request) const override;
  void serve(const std::shared_ptr<Exchange>& exchange) override;
  Response refuse(const Refused& refused) override;
  void strangerRefused(const std::string& peer, const std::string& why) override;
  void inTrouble(const std::string& why) override;
  void tlsInUse(const std::vector<CertificateExpiry>& expiries) override;
  void clientSeen(const Principal& client, std::time_t not_after) override;

  // For handlers.
  fabric::Manager& manager() { return manager_; }
  WatchHub& hub() { return *hub_; }
  Metrics& metrics() { return metrics_; }
  ExpiryBook& expiries() { return expiries_; }
  const Clock& clock() const { return clock_; }
  const std::string& version() const { return version_; }
  Nanoseconds uptime() const { return clock_.now() - started_; }
  uint64_t connections() const { return connections_ ? connections_() : 0; }

  /// Before requests come in: how to ask the server for the number of its connections.
  void countConnections(std::function<uint64_t()> ask) { connections_ = std::move(ask); }
  /// Says once a day which certificates end soon. To be called now and then.
  void tellOfExpiries();
  /// Ends all watches.
  void stopWatching() { hub_->stop(); }
  /// For the manager's on_durable.
  void wakeWatchers() { hub_->wake(); }

 private:
  Outcome answer(const Route& route, std::vector<std::string> path,
                 const std::shared_ptr<Exchange>& exchange, Response* wrong);
  /// `why` is of answers that are no success; may be empty.
  void logAccess(const Exchange& exchange, const Route* route, int status, Nanoseconds took,
                 const std::string& why);
  /// Lines about what is refused are limited: a client that is refused must not fill the disk.
  void logRefused(const std::string& line) TP_EXCLUDES(mutex_);

  fabric::Manager& manager_;
  const Clock& clock_;
  const std::string version_;
  const Log log_;
  const Nanoseconds started_;
  Metrics metrics_;
  ExpiryBook expiries_;
  std::unique_ptr<WatchHub> hub_;
  std::function<uint64_t()> connections_;
  Mutex mutex_;
  TokenBucket refused_lines_ TP_GUARDED_BY(mutex_);
  uint64_t unsaid_ TP_GUARDED_BY(mutex_) = 0;
};

}  // namespace tidepool::api
