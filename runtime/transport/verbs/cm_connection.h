// SPDX-License-Identifier: Apache-2.0
// The client's end of an RDMA connection: librdmacm's identifier, its queue pair and completion
// queue, and the memory that the device may touch. One owner thread. In a child of fork() the
// destructor closes descriptors alone: the rest is the parent's.
#pragma once

#include <sys/types.h>

#include <memory>

#include "runtime/base/mapping.h"
#include "runtime/base/unique_fd.h"
#include "runtime/transport/connection.h"
#include "runtime/transport/verbs/device_watch.h"
#include "runtime/transport/verbs/library.h"
#include "runtime/transport/wire.h"

namespace tidepool::verbs {

struct ConnectionSizes {
  uint32_t depth = 0;        // work requests under way
  uint32_t inline_data = 0;  // bytes that a work request carries itself, if the device can
  Bytes memory;
};

class CmConnection {
 public:
  /// Shows `ticket` at `port` of `server`. Errors: kUnreachable, kTimedOut, kUnsupported (no device
  /// leads there), kNoMemory (too little memory may be locked).
  static Result<std::unique_ptr<CmConnection>> connect(const Library& library,
                                                       const Endpoint& server, uint16_t port,
                                                       const wire::Token& ticket,
                                                       const ConnectionSizes& sizes,
                                                       Nanoseconds timeout);
  ~CmConnection();
  CmConnection(const CmConnection&) = delete;
  CmConnection& operator=(const CmConnection&) = delete;

  ibv_qp* queuePair() const { return id_->qp; }
  /// Bytes that a work request can carry itself.
  uint32_t inlineData() const { return inline_data_; }
  ibv_cq* completions() const { return completions_; }
  ibv_comp_channel* events() const { return events_; }
  std::byte* memory() const { return memory_.data(); }
  uint32_t memoryKey() const { return registered_->lkey; }
  /// Readable when there is something to ask stillUp() for.
  int managementFd() const { return management_.get(); }
  /// Errors: kUnreachable: the peer has ended the connection, or the device has failed or gone.
  /// Events of this connection's own queues are not read (see DeviceWatch): a queue that fails ends
  /// what is under way with errors.
  Status stillUp();

 private:
  explicit CmConnection(const Library& library);
  Status resolve(const Endpoint& server, uint16_t port, Nanoseconds timeout);
  Status watch();
  Status makeQueues(const ConnectionSizes& sizes);
  Status registerMemory(Bytes size);
  Status shakeHands(const wire::Token& ticket, Nanoseconds timeout);
  Status expect(rdma_cm_event_type wanted, Nanoseconds timeout);

  const Library& library_;
  const pid_t owner_;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  std::shared_ptr<DeviceWatch> device_;  // null: the device has nobody who hears of it
  UniqueFd management_;                  // epoll of all that stillUp() asks
  ibv_comp_channel* events_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_mr* registered_ = nullptr;
  Mapping memory_;
  uint32_t inline_data_ = 0;
};

}  // namespace tidepool::verbs
