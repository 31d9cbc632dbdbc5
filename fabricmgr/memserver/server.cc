// SPDX-License-Identifier: Apache-2.0
// Server: start, stop and fencing. Workers are stopped before anything they use is destroyed.
#include "fabricmgr/memserver/server.h"

#include <algorithm>

#include "fabricmgr/memserver/worker.h"

namespace tidepool::memserver {

Server::Server(const ServerOptions& options)
    : options_(options), regions_(options.size, options.grace, clock_) {}

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
  // The accepting worker starts last: it hands connections to all of them.
  for (unsigned i = std::max(1u, options.threads); i-- > 0;) {
    auto worker = Worker::start(*server, i == 0 ? std::move(*listener) : UniqueFd());
    if (!worker) return tl::unexpected(worker.error());
    server->workers_.push_back(std::move(*worker));
  }
  return server;
}

void Server::stop() {
  // The accepting worker, which uses the others, goes first.
  while (!workers_.empty()) workers_.pop_back();
}

Worker& Server::nextWorker() { return *workers_[next_worker_++ % workers_.size()]; }

Status Server::fence(uint64_t region, Epoch epoch) {
  TP_TRY(regions_.fence(region, epoch));
  for (const auto& worker : workers_) worker->quiesce();
  return {};
}

}  // namespace tidepool::memserver
