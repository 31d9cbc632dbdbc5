// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/serve/replica.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "fabricmgr/store/etcd_replica.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"

namespace tidepool::serve {
namespace {

using Level = api::Service::Level;

/// For so long news are waited for at once.
constexpr Nanoseconds kWait(250'000'000);
constexpr int kPauseMilliseconds = 500;
/// It is up to date again.
constexpr Nanoseconds kFresh(2'000'000'000);

const WallClock kWallClock;

}  // namespace

/// What requests may use a while longer than it is shown. The service goes first.
struct Replica::Shown {
  std::unique_ptr<fabric::Manager> manager;
  std::unique_ptr<api::Service> service;
};

Replica::Replica(const Config& config, std::string version, api::Service::Log log,
                 api::Standby* standby, std::function<uint64_t()> connections)
    : config_(config),
      version_(std::move(version)),
      log_(std::move(log)),
      standby_(standby),
      connections_(std::move(connections)),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  TP_CHECK_OP(stop_.get(), >=, 0);
  thread_ = std::thread([this] { run(); });
}

Replica::~Replica() {
  hide();
  thread_.join();
  hide();  // what was read meanwhile
}

void Replica::hide() {
  finish();
  if (const std::shared_ptr<api::Service> shown = standby_->shows(nullptr)) shown->stopWatching();
}

void Replica::finish() {
  finishing_ = true;
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof one);
}

void Replica::run() {
  pollfd waiting = {stop_.get(), POLLIN, 0};
  while (!finishing_) {
    const bool good = shown_ ? keepUp() : load();
    if (!good) poll(&waiting, 1, kPauseMilliseconds);
  }
}

bool Replica::load() {
  auto shown = std::make_shared<Shown>();
  fabric::ManagerOptions options;
  options.clock = &kMonotonicClock;
  options.wall_clock = &kWallClock;
  options.on_durable = [raw = shown.get()](fabric::Index) {
    if (raw->service) raw->service->wakeWatchers();
  };
  auto manager = fabric::Manager::follow(fabric::followEtcdStore(*config_.etcd), options);
  if (!manager) {
    say(manager.error().text());
    return false;
  }
  shown->manager = std::move(*manager);
  shown->service = std::make_unique<api::Service>(*shown->manager, kMonotonicClock, version_, log_);
  shown->service->countConnections(connections_);
  log_(Level::kInfo, fmt::format("shows what it reads of the store, from index {} on",
                                 shown->manager->index().value()));
  shown_ = shown;
  standby_->shows({shown, shown->service.get()});
  return true;
}

bool Replica::keepUp() {
  const Status kept = shown_->manager->keepUp(kWait);
  shown_->service->tellOfExpiries();
  if (!kept) {
    say(kept.error().text());
  } else if (shown_->manager->age() < kFresh) {
    said_.clear();
  }
  return kept.has_value();
}

void Replica::say(const std::string& trouble) {
  if (std::exchange(said_, trouble) == trouble) return;
  log_(Level::kWarning, fmt::format("what it shows is not up to date: {}", trouble));
}

}  // namespace tidepool::serve
