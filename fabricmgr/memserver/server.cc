// SPDX-License-Identifier: Apache-2.0
// Server: start, stop and fencing. Workers are stopped before anything they use is destroyed.
#include "fabricmgr/memserver/server.h"

#include <sys/resource.h>

#include <algorithm>

#include "fabricmgr/memserver/worker.h"

namespace tidepool::memserver {

namespace {

uint64_t descriptorLimit() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 1024;
}

/// A quarter of the descriptors at most.
size_t newcomersOf(const ServerOptions& options) {
  return std::clamp<size_t>(descriptorLimit() / 4, 4, std::max<size_t>(4, options.newcomers));
}

/// Clients do not take the last descriptors from the manager, if there is one.
uint64_t mostConnections(LendsTo lends_to) {
  if (lends_to == LendsTo::kAnybody) return UINT64_MAX;
  const uint64_t limit = descriptorLimit();
  return limit - std::min<uint64_t>(limit / 4, 128);
}

}  // namespace

Server::Server(const ServerOptions& options)
    : options_(options),
      regions_(options.size, {options.grace, std::max(options.grace, options.broken_grace)}, clock_,
               options.lends_to),
      newcomers_(newcomersOf(options), newcomersOf(options) / 4),
      most_connections_(mostConnections(options.lends_to)) {}

Server::~Server() { stop(); }

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options) {
  if (options.size.value() < kPageSize) {
    return fail(ErrorCode::kInvalidArgument,
                "a memory server needs at least one page (4K) to lend");
  }
  const auto endpoint = parseEndpoint(options.listen.c_str());
  if (!endpoint) return tl::unexpected(endpoint.error());
  auto listener = listenTcp(*endpoint);
  if (!listener) return tl::unexpected(listener.error());
  const auto port = boundPort(listener->get());
  if (!port) return tl::unexpected(port.error());
  std::unique_ptr<Server> server(new Server(options));
  server->port_ = *port;
  server->one_sided_ = options.one_sided;
  if (options.transport != Transport::kTcp) {
    auto verbs = startVerbs(listener->get());
    if (verbs) {
      server->verbs_ = std::move(*verbs);
      server->one_sided_ = server->verbs_.get();
    } else {
      server->no_rdma_ = verbs.error().text();
    }
  }
  if (server->one_sided_ != nullptr) {
    server->lanes_ = std::make_unique<LaneOpener>(*server->one_sided_);
  }
  for (unsigned i = 0; i < std::max(1u, options.threads); ++i) {
    auto worker = Worker::create(*server, i == 0 ? std::move(*listener) : UniqueFd());
    if (!worker) return tl::unexpected(worker.error());
    server->workers_.push_back(std::move(*worker));
  }
  // From here on the list is only read, by the workers: no lock is needed.
  for (const auto& worker : server->workers_) worker->launch();
  return server;
}

void Server::stop() {
  // The accepting worker, which hands sockets to the others, is the first; all end before any goes.
  for (const auto& worker : workers_) worker->stop();
}

Worker& Server::nextWorker() { return *workers_[next_worker_++ % workers_.size()]; }

Nanoseconds Server::caughtUpTo() const {
  Nanoseconds all = workers_.front()->caughtUpTo();
  for (const auto& worker : workers_) all = std::min(all, worker->caughtUpTo());
  return all;
}

void Server::quiesce() {
  for (const auto& worker : workers_) worker->quiesce();
}

void Server::endOneSided(uint64_t region, Epoch epoch) {
  if (one_sided_ != nullptr) one_sided_->revoke(region, epoch);
}

Status Server::fence(uint64_t region, Epoch epoch) {
  TP_TRY(regions_.fence(region, epoch));
  quiesce();
  endOneSided(region, epoch);
  return {};
}

}  // namespace tidepool::memserver
