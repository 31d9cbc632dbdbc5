// SPDX-License-Identifier: Apache-2.0
// A manager among several that have one store in etcd: it stands by while another one leads, and
// shows what that one writes; then it leads itself, and stands by again when it has lost the lead.
// start(), reload() and stop() belong to one thread.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "fabricmgr/api/standby.h"
#include "fabricmgr/serve/daemon.h"
#include "fabricmgr/serve/replica.h"
#include "fabricmgr/store/etcd_election.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::serve {

class Succession {
 public:
  /// Leads, or listens and stands by. `config` has an etcd. Errors: those of the store, and of
  /// Daemon::start().
  static Result<std::unique_ptr<Succession>> start(const Config& config, const std::string& version,
                                                   const api::Service::Log& log);
  ~Succession();
  Succession(const Succession&) = delete;
  Succession& operator=(const Succession&) = delete;

  uint16_t port() TP_EXCLUDES(mutex_);
  /// As Daemon's.
  Status reload() TP_EXCLUDES(mutex_);
  void stop();

 private:
  Succession(const Config& config, std::string version, api::Service::Log log);
  Status begin();
  /// Until stop().
  void run();
  void campaign();
  /// The election is won.
  Status lead() TP_EXCLUDES(mutex_);
  Status standBy() TP_EXCLUDES(mutex_);
  /// Of the daemon: that of who stood by, if it did. Thousands of agents keep connections to it,
  /// for this very moment: new ones would cost them seconds, in which their leases end.
  Result<std::unique_ptr<api::HttpServer>> serverFor(const api::ServerOptions& options,
                                                     api::HttpHandler& handler) TP_EXCLUDES(mutex_);
  void closeServer() TP_EXCLUDES(mutex_);
  void stepDown() TP_EXCLUDES(mutex_);
  void renounce();
  void saw(const std::string& leader, const std::string& why);
  void say(api::Service::Level level, const std::string& line) const { log_(level, line); }

  const Config config_;
  const std::string version_;
  const api::Service::Log log_;
  api::Standby standby_;
  // run()'s, once it runs. Shared with the store, which asks it at every write.
  std::shared_ptr<fabric::EtcdElection> election_;
  std::string said_;  // of who leads
  Mutex mutex_;
  // One of them, but while one takes the other's place.
  std::unique_ptr<Daemon> daemon_ TP_GUARDED_BY(mutex_);
  std::unique_ptr<api::HttpServer> server_ TP_GUARDED_BY(mutex_);  // of who stands by
  bool reload_due_ TP_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Replica> replica_;  // what `server_` shows; run()'s, once it runs
  UniqueFd stop_;                     // an eventfd
  std::thread thread_;
};

}  // namespace tidepool::serve
