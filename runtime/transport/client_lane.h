// SPDX-License-Identifier: Apache-2.0
// A client's lane beside its connection: which requests it carries, in which pieces, and which have
// ended. Owned and used by the client's thread; allocates in open() only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/transport/fetch_channel.h"
#include "runtime/transport/page_lane.h"
#include "runtime/transport/request_ring.h"
#include "runtime/transport/wire.h"

namespace tidepool {

/// Who gathers and scatters rows: the server's processor, or a lane if there is one.
enum class RowsBy : uint8_t { kServer, kLane };

class ClientLane {
 public:
  /// `requests` is borrowed for its life.
  explicit ClientLane(RequestRing& requests) : requests_(requests) {}
  ClientLane(const ClientLane&) = delete;
  ClientLane& operator=(const ClientLane&) = delete;

  /// Uses `lane`, which reaches `length` bytes of the region. Once at most. Errors: kIo.
  Status open(std::unique_ptr<PageLane> lane, uint64_t length, int connection);
  bool isOpen() const { return lane_ != nullptr; }
  /// Readable when the connection or the lane has something to say; -1 before open(). The same
  /// after close(), until forgetConnection().
  int fd() const { return events_.get(); }
  /// Whether fd() tells when the connection, which is full, takes more.
  void watchSending(int connection, bool full);

  /// Whether the lane carries a request. `offsets`: of its rows.
  bool carries(const wire::Request& request, std::span<const std::byte> offsets, RowsBy rows) const;
  /// Starts sending as many pieces through the lane as it has room for. False: none.
  /// Errors: the lane's; it is of no more use.
  Result<bool> send(PageLane::Ends ends);
  /// Whether the oldest request has ended.
  bool complete() const { return requests_.sent() != 0 && done_ >= requests_.oldest().length; }
  /// Takes requests that have ended. Errors: as for send().
  struct Ended {
    size_t requests;
    bool moved;  // bytes, if not whole requests
  };
  Result<Ended> take(std::span<FetchCompletion> out);
  void lookout() { (void)lane_->lookout(); }
  /// Gives the lane up, and with it what has ended in part.
  void close();
  /// fd() is -1 again: the connection that it watches has gone.
  void forgetConnection() { events_ = UniqueFd(); }

 private:
  LanePiece nextPiece() const;

  RequestRing& requests_;
  uint64_t length_ = 0;    // of the region, that the lane reaches
  uint64_t done_ = 0;      // bytes that have ended in the lane, from the oldest request on
  UniqueFd events_;        // epoll of the connection and the lane; outlives the lane
  bool watching_ = false;  // events_ waits until the connection takes more, too
  std::unique_ptr<PageLane> lane_;
};

}  // namespace tidepool
