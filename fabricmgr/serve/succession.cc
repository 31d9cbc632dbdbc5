// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/serve/succession.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "fabricmgr/store/etcd_store.h"
#include "runtime/base/check.h"

namespace tidepool::serve {
namespace {

using Level = api::Service::Level;

/// How soon it is seen that nobody leads any more, or that this manager does not.
constexpr int kLookMilliseconds = 250;

}  // namespace

Succession::Succession(const Config& config, std::string version, api::Service::Log log)
    : config_(config),
      version_(std::move(version)),
      log_(std::move(log)),
      standby_([this](const std::string& line) { say(Level::kError, line); }),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  TP_CHECK_OP(stop_.get(), >=, 0);
  renounce();
}

Succession::~Succession() { stop(); }

void Succession::renounce() {
  election_ =
      std::make_shared<fabric::EtcdElection>(*config_.etcd, nameOf(config_), config_.leader_lease);
}

Result<std::unique_ptr<Succession>> Succession::start(const Config& config,
                                                      const std::string& version,
                                                      const api::Service::Log& log) {
  std::unique_ptr<Succession> succession(new Succession(config, version, log));
  TP_TRY(succession->begin());
  succession->thread_ = std::thread([raw = succession.get()] { raw->run(); });
  return succession;
}

Status Succession::begin() {
  const auto leader = election_->campaign();
  if (!leader) return tl::unexpected(leader.error());
  if (!*leader) return lead();
  saw(**leader, "");
  return standBy();
}

void Succession::run() {
  pollfd waiting = {stop_.get(), POLLIN, 0};
  while (poll(&waiting, 1, kLookMilliseconds) == 0) {
    bool leads = false;
    {
      const MutexLock lock(mutex_);
      leads = daemon_ != nullptr;
    }
    if (!leads) {
      campaign();
    } else if (election_->lost()) {
      stepDown();
    }
  }
}

void Succession::campaign() {
  const auto leader = election_->campaign();
  if (!leader) return saw("", leader.error().text());
  if (*leader) return saw(**leader, "");
  const Status led = lead();
  if (led) return;
  saw("", led.error().text());
  replica_.reset();
  renounce();
  const Status again = standBy();
  if (!again) say(Level::kError, fmt::format("cannot listen: {}", again.error().text()));
}

void Succession::saw(const std::string& leader, const std::string& why) {
  standby_.leads(leader, why);
  const std::string line = leader.empty() ? fmt::format("nobody leads: {}", why)
                                          : fmt::format("stands by: {} leads", leader);
  if ((leader.empty() && why.empty()) || std::exchange(said_, line) == line) return;
  say(leader.empty() ? Level::kWarning : Level::kInfo, line);
}

Status Succession::lead() {
  auto store = fabric::openEtcdStore(election_);
  if (!store) return tl::unexpected(store.error());
  // What it shows stays, and is not renewed, while the daemon loads the state for itself.
  if (replica_) replica_->finish();
  {
    const MutexLock lock(mutex_);
    reload_due_ = false;  // the daemon reads all files anew, but those of a server that listens
  }
  auto daemon = Daemon::start(config_, std::move(*store), version_, log_,
                              [this](const api::ServerOptions& options, api::HttpHandler& handler) {
                                return serverFor(options, handler);
                              });
  if (!daemon) return tl::unexpected(daemon.error());
  said_.clear();
  say(Level::kInfo, fmt::format("leads, in term {}", (*daemon)->manager().leader().term.value()));
  {
    const MutexLock lock(mutex_);
    daemon_ = std::move(*daemon);
    const Status reloaded = reload_due_ ? daemon_->reload() : Status();
    if (!reloaded) say(Level::kError, fmt::format("not reloaded: {}", reloaded.error().text()));
  }
  replica_.reset();  // it may be reading the store yet: nobody waited for that
  return {};
}

Result<std::unique_ptr<api::HttpServer>> Succession::serverFor(const api::ServerOptions& options,
                                                               api::HttpHandler& handler) {
  if (replica_) replica_->hide();
  std::unique_ptr<api::HttpServer> server;
  {
    const MutexLock lock(mutex_);
    server = std::move(server_);
  }
  if (!server) return api::HttpServer::start(options, handler);
  server->handOver(handler, options.headers);
  return server;
}

Status Succession::standBy() {
  {
    const MutexLock lock(mutex_);
    if (!server_) {
      auto server = api::HttpServer::start(config_.server, standby_);
      if (!server) return tl::unexpected(server.error());
      server_ = std::move(*server);
    }
  }
  if (replica_) return {};
  replica_ = std::make_unique<Replica>(config_, version_, log_, &standby_, [this]() -> uint64_t {
    const MutexLock lock(mutex_);
    return server_ ? server_->connections() : 0;
  });
  return {};
}

void Succession::closeServer() {
  if (replica_) replica_->hide();
  std::unique_ptr<api::HttpServer> server;
  {
    const MutexLock lock(mutex_);
    server = std::move(server_);
  }
  server.reset();  // without the mutex, which its threads take
}

void Succession::stepDown() {
  say(Level::kError, "this manager does not lead any more: it stands by");
  std::unique_ptr<Daemon> daemon;
  {
    const MutexLock lock(mutex_);
    daemon = std::move(daemon_);
  }
  daemon.reset();
  renounce();
  standby_.leads("", "");
  const Status again = standBy();
  if (!again) say(Level::kError, fmt::format("cannot listen: {}", again.error().text()));
}

uint16_t Succession::port() {
  const MutexLock lock(mutex_);
  return daemon_ ? daemon_->port() : server_ ? server_->port() : uint16_t{0};
}

Status Succession::reload() {
  const MutexLock lock(mutex_);
  if (daemon_) return daemon_->reload();
  reload_due_ = true;  // of a daemon that is being made
  return server_ ? server_->reloadTls() : Status();
}

void Succession::stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!write(stop_.get(), &one, sizeof one);
    thread_.join();
  }
  closeServer();
  replica_.reset();
  std::unique_ptr<Daemon> daemon;
  {
    const MutexLock lock(mutex_);
    daemon = std::move(daemon_);
  }
  daemon.reset();
  election_.reset();  // only now may another one lead
}

}  // namespace tidepool::serve
