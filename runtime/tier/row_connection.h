// SPDX-License-Identifier: Apache-2.0
// One connection to a memory server that several row channels share, each through a port. Requests
// of all go out at once and are answered in their order; the lock is never held while somebody
// waits for the network. The first port that waits receives for all, and hands that on when its
// own answer has come. Thread-safe, a port for one thread at a time. A child of fork() must not use
// its parent's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/tier/offset_ring.h"
#include "runtime/transport/client.h"

namespace tidepool {

/// Rows for one request.
struct RowRequest {
  enum class Direction : uint8_t { kRead, kWrite };
  Direction direction;
  uint64_t tag;
  std::span<const uint64_t> rows;  // copied
  std::byte* memory;               // borrowed until the request ends; only read for kWrite
  uint64_t base;                   // byte of the region that row 0 begins at
  Bytes row;
  uint32_t pieces;  // that the protocol carries, a row
};

class RowConnection {
 public:
  /// Requests of all ports that may be in flight, and the offsets that these may have in all:
  /// 4 MiB, taken as they are used.
  static constexpr uint32_t kMostRequests = 1024;
  static constexpr uint64_t kMostOffsets = 512 * kKiB;
  /// Requests of one port that have not been returned.
  static constexpr size_t kMostOfOne = 256;

  class Port {
   public:
    Port() = default;
    Port(const Port&) = delete;
    Port& operator=(const Port&) = delete;

   private:
    friend class RowConnection;
    // Guarded by the connection's lock.
    size_t begun = 0;                    // requests that have not ended
    std::vector<FetchCompletion> ended;  // the first `returned` of them have been returned
    size_t returned = 0;
    CondVar wake;
  };

  /// `client` is used by nobody else. Errors: kNoMemory.
  static Result<std::shared_ptr<RowConnection>> create(std::unique_ptr<RemoteClient> client);

  // As RowChannel says of its functions. kNoSpace: the port has to take some of its own first.
  // While others' requests leave no room for the first one of a port, submit() waits.
  Status submit(Port& port, const RowRequest& request) TP_EXCLUDES(mutex_);
  Status flush() TP_EXCLUDES(mutex_);
  size_t poll(Port& port, std::span<FetchCompletion> out) TP_EXCLUDES(mutex_);
  FetchCompletion wait(Port& port) TP_EXCLUDES(mutex_);
  size_t inFlight(const Port& port) const TP_EXCLUDES(mutex_);
  bool failed() const TP_EXCLUDES(mutex_);
  /// Why, after the caller's name.
  void writeReason(const char* name, std::span<char> out) const TP_EXCLUDES(mutex_);
  /// Ends the port's use, once its requests have ended: nothing of their memory is touched then.
  void close(Port& port) TP_EXCLUDES(mutex_);

  /// Whether rows go by RDMA now.
  bool hasLane() const TP_EXCLUDES(mutex_);

 private:
  struct Owner {
    Port* port;
    uint64_t tag;
  };
  RowConnection(std::unique_ptr<RemoteClient> client, OffsetRing lists);
  static size_t outstanding(const Port& port) {
    return port.begun + port.ended.size() - port.returned;
  }
  static size_t take(Port& port, std::span<FetchCompletion> out);
  static void putDown(const RowRequest& request, std::span<uint64_t> places);
  std::span<uint64_t> place(uint64_t count) TP_REQUIRES(mutex_);
  bool receive(Wait wait) TP_REQUIRES(mutex_);
  void deliver(const FetchCompletion& completion) TP_REQUIRES(mutex_);
  void await(Port& port) TP_REQUIRES(mutex_);
  void wake(Port& port) TP_REQUIRES(mutex_);
  void handOn() TP_REQUIRES(mutex_);

  mutable Mutex mutex_;
  const std::unique_ptr<RemoteClient> client_ TP_GUARDED_BY(mutex_);
  OffsetRing lists_ TP_GUARDED_BY(mutex_);
  std::vector<Owner> owners_ TP_GUARDED_BY(mutex_);  // by number, of requests in flight
  bool receiving_ TP_GUARDED_BY(mutex_) = false;     // a port has let go of the lock to receive
  std::vector<Port*> waiting_ TP_GUARDED_BY(mutex_);
  size_t starved_ TP_GUARDED_BY(mutex_) = 0;  // ports that wait for room
};

}  // namespace tidepool
