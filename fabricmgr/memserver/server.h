// SPDX-License-Identifier: Apache-2.0
// The memory server: a listener, worker threads with an epoll loop each, and the regions they
// serve. In-process use (tests, the daemon): start(), port(), stop(). start(), stop() and the
// destructor belong to one thread; the rest is thread-safe. Sessions belong to their worker.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabricmgr/memserver/connections.h"
#include "fabricmgr/memserver/newcomers.h"
#include "fabricmgr/memserver/region_table.h"
#include "fabricmgr/memserver/session.h"
#include "fabricmgr/memserver/throttled_log.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/options.h"

namespace tidepool::memserver {

class Worker;

struct ServerOptions {
  std::string listen = "127.0.0.1:0";  // HOST:PORT; port 0: any free one
  Bytes size;                          // bound on the sum of the regions
  unsigned threads = 1;
  /// kByOrders: for a ControlServer.
  LendsTo lends_to = LendsTo::kAnybody;
  /// How long a region outlives its last connection; and how long if it had broken, and the client
  /// may make it again.
  Nanoseconds grace = Nanoseconds(2'000'000'000);
  Nanoseconds broken_grace = Nanoseconds(30'000'000'000);
  /// How long a connection may take over its handshake.
  Nanoseconds handshake_limit = Nanoseconds(10'000'000'000);
  /// Of descriptors, for clients that have not shaken hands; a quarter of that for one address.
  size_t newcomers = 1024;
  /// kAuto: clients read and write pages by RDMA as well, where there is a device for that.
  Transport transport = Transport::kTcp;
  /// Instead of RDMA, borrowed: for tests.
  OneSided* one_sided = nullptr;
};

class Server {
 public:
  /// Binds, and starts the threads. Errors: kInvalidArgument, kConflict (address taken),
  /// kPermission, kNotFound (host).
  static Result<std::unique_ptr<Server>> start(const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const { return port_; }
  /// Closes every connection and joins the threads. May be called twice.
  void stop();
  /// Raises a region's epoch. When it returns, no byte of a request with an older epoch reaches
  /// the region any more. Errors: as RegionTable::fence().
  Status fence(uint64_t region, Epoch epoch);

  /// When it returns, nobody who was let in before `epoch` reads or writes the region past this
  /// process, and its memory is not pinned for them. Call it when no session can let anybody in
  /// again: after fencing and quiesce().
  void endOneSided(uint64_t region, Epoch epoch);
  /// Why clients cannot use RDMA; empty if they can, or it was not asked for.
  const std::string& noRdma() const { return no_rdma_; }

  /// When it returns, every session has been between two requests: each has seen what was changed
  /// before.
  void quiesce();

  RegionTable& regions() { return regions_; }
  const Counters& counters() const { return counters_; }

 private:
  friend class Worker;
  explicit Server(const ServerOptions& options);
  /// The worker that takes the next connection. Called by the accepting worker only.
  Worker& nextWorker();
  /// As Worker::caughtUpTo(), of all workers. Called by workers.
  Nanoseconds caughtUpTo() const;

  const ServerOptions options_;
  MonotonicClock clock_;
  RegionTable regions_;
  Populator populator_;
  Counters counters_;
  Connections connections_;
  ThrottledLog log_{clock_};
  Newcomers newcomers_;
  const uint64_t most_connections_;
  std::string no_rdma_;
  std::unique_ptr<OneSided> verbs_;
  OneSided* one_sided_ = nullptr;      // verbs_, or what the options say
  std::unique_ptr<LaneOpener> lanes_;  // to one_sided_
  uint16_t port_ = 0;
  size_t next_worker_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace tidepool::memserver
