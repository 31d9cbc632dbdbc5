// SPDX-License-Identifier: Apache-2.0
// Daemon: what is started last is stopped first.
#include "fabricmgr/serve/daemon.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <utility>

#include "fabricmgr/device/drivers.h"
#include "fabricmgr/store/sqlite_store.h"
#include "runtime/base/check.h"

namespace tidepool::serve {
namespace {

constexpr int kTickMilliseconds = 1000;
constexpr int kPulseMilliseconds = 100;
constexpr Nanoseconds kPatience(20'000'000'000);

fabric::DriverSettings settingsOf(const Config& config, const Clock& wall_clock) {
  fabric::DriverSettings settings;
  settings.wall_clock = &wall_clock;
  settings.cxl.switch_program = config.cxl_switch;
  settings.cxl.host = config.cxl_host;
  const size_t folder = config.state.rfind('/');
  if (folder != std::string::npos) settings.cxl.state_folder = config.state.substr(0, folder);
  return settings;
}

/// Every answer says which manager gave it.
api::ServerOptions serverOptions(const Config& config, const fabric::Leader& leader) {
  api::ServerOptions options = config.server;
  options.headers = {{"Tidepool-Fabric", leader.fabric},
                     {"Tidepool-Term", std::to_string(leader.term.value())}};
  return options;
}

}  // namespace

Result<std::unique_ptr<Daemon>> Daemon::start(const Config& config, const std::string& version,
                                              api::Service::Log log) {
  auto store = fabric::openSqliteStore(config.state);
  if (!store) return tl::unexpected(store.error());
  return start(config, std::move(*store), version, std::move(log), api::HttpServer::start);
}

Result<std::unique_ptr<Daemon>> Daemon::start(const Config& config,
                                              std::unique_ptr<fabric::Store> store,
                                              const std::string& version, api::Service::Log log,
                                              const Listen& listen) {
  std::unique_ptr<Daemon> daemon(new Daemon());
  fabric::DriverSettings settings = settingsOf(config, daemon->wall_clock_);
  if (config.memservers) {
    auto tls = TlsInUse::load(*config.memservers);
    if (!tls) return tl::unexpected(tls.error());
    settings.tls = daemon->memservers_ = std::move(*tls);
  }
  fabric::ManagerOptions options;
  options.drivers = fabric::makeDriverFactory(settings);
  options.clock = &daemon->clock_;
  options.wall_clock = &daemon->wall_clock_;
  options.workers = config.workers;
  options.hold_percent = config.hold_percent;
  options.audit_age = Nanoseconds(uint64_t{config.audit_days} * 86'400'000'000'000);
  options.audit_records = config.audit_records;
  options.take_over = config.take_over;
  options.patience = kPatience;
  options.say = [log](fabric::Weight weight, const std::string& line) {
    using Level = api::Service::Level;
    constexpr Level kLevels[] = {Level::kInfo, Level::kWarning, Level::kError};
    log(kLevels[static_cast<size_t>(weight)], line);
  };
  options.on_durable = [daemon = daemon.get()](fabric::Index) {
    // Acquire: pairs with the release when the service is there.
    if (api::Service* service = daemon->to_wake_.load(std::memory_order_acquire)) {
      service->wakeWatchers();
    }
  };
  auto manager = fabric::Manager::open(std::move(store), options);
  if (!manager) return tl::unexpected(manager.error());
  daemon->manager_ = std::move(*manager);
  daemon->service_ =
      std::make_unique<api::Service>(*daemon->manager_, daemon->clock_, version, std::move(log));
  daemon->to_wake_.store(daemon->service_.get(), std::memory_order_release);
  daemon->service_->countConnections([daemon = daemon.get()]() -> uint64_t {
    const api::HttpServer* server = daemon->to_count_.load(std::memory_order_acquire);
    return server == nullptr ? 0 : server->connections();
  });
  auto server = listen(serverOptions(config, daemon->manager_->leader()), *daemon->service_);
  if (!server) return tl::unexpected(server.error());
  daemon->server_ = std::move(*server);
  daemon->lookAtMemservers();
  // Release: pairs with the acquire where connections are counted.
  daemon->to_count_.store(daemon->server_.get(), std::memory_order_release);
  daemon->stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  TP_CHECK_OP(daemon->stop_.get(), >=, 0);
  daemon->ticker_ = std::thread([raw = daemon.get()] {
    raw->untilStopped(kTickMilliseconds, [raw] {
      raw->manager_->tick();
      raw->lookAtMemservers();
      raw->service_->tellOfExpiries();
    });
  });
  // Beside it: a tick may wait for devices.
  daemon->pulse_ = std::thread([raw = daemon.get()] {
    raw->untilStopped(kPulseMilliseconds, [raw] { raw->manager_->pulse(); });
  });
  return daemon;
}

Daemon::~Daemon() { stop(); }

Status Daemon::reload() {
  // What can fail comes before anything that is new is used.
  auto api = server_->readTls();
  if (!api) return tl::unexpected(api.error());
  if (memservers_) TP_TRY(memservers_->reload());
  server_->useTls(std::move(*api));
  return {};
}

/// What it shows memory servers, and they show it, ends as clients' certificates do.
void Daemon::lookAtMemservers() {
  if (!memservers_) return;
  const std::time_t now = std::time(nullptr);
  std::vector<CertificateExpiry> all = memservers_->peers(now);
  for (const CertificateExpiry& one : memservers_->now()->expiries()) {
    if (one.kind == "server") all.push_back(one);
  }
  for (const CertificateExpiry& one : all) service_->expiries().saw(one.name, one.end, now);
}

void Daemon::untilStopped(int every_milliseconds, const std::function<void()>& work) const {
  pollfd waiting = {stop_.get(), POLLIN, 0};
  while (poll(&waiting, 1, every_milliseconds) == 0) work();
}

void Daemon::stop() {
  if (ticker_.joinable()) {
    const uint64_t one = 1;
    (void)!write(stop_.get(), &one, sizeof one);
    ticker_.join();
    pulse_.join();
  }
  if (service_) service_->stopWatching();
  if (server_) server_->stop();
  // The manager wakes watchers until it is gone, so the service goes after it.
  manager_.reset();
}

}  // namespace tidepool::serve
