// SPDX-License-Identifier: Apache-2.0
// The fabric manager as a whole: store, manager, service and server, put together and taken apart
// in order. start() and stop() belong to one thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "fabricmgr/api/service.h"
#include "fabricmgr/serve/config.h"
#include "fabricmgr/store/store.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace tidepool::serve {

class Daemon {
 public:
  /// Loads the state, settles what was under way, then listens. Errors: those of each part.
  static Result<std::unique_ptr<Daemon>> start(const Config& config, const std::string& version,
                                               api::Service::Log log);
  /// What is to listen, when the state is settled; as HttpServer::start().
  using Listen = std::function<Result<std::unique_ptr<api::HttpServer>>(
      const api::ServerOptions& options, api::HttpHandler& handler)>;
  /// With a store that is open already.
  static Result<std::unique_ptr<Daemon>> start(const Config& config,
                                               std::unique_ptr<fabric::Store> store,
                                               const std::string& version, api::Service::Log log,
                                               const Listen& listen);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  uint16_t port() const { return server_->port(); }
  fabric::Manager& manager() { return *manager_; }
  /// Reads certificates and revocations again: of the API and for memory servers, or, on an error,
  /// of neither. Errors: as TlsContext::load().
  Status reload();
  void stop();

 private:
  Daemon() = default;
  void lookAtMemservers();
  void untilStopped(int every_milliseconds, const std::function<void()>& work) const;

  MonotonicClock clock_;
  WallClock wall_clock_;
  // Set once each is there; the threads that read them may be there before.
  std::atomic<api::Service*> to_wake_{nullptr};
  std::atomic<const api::HttpServer*> to_count_{nullptr};
  std::shared_ptr<TlsInUse> memservers_;  // null: there are none
  std::unique_ptr<fabric::Manager> manager_;
  std::unique_ptr<api::Service> service_;
  std::unique_ptr<api::HttpServer> server_;
  UniqueFd stop_;  // an eventfd
  std::thread ticker_;
  std::thread pulse_;
};

}  // namespace tidepool::serve
