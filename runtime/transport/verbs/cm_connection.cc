// SPDX-License-Identifier: Apache-2.0
// CmConnection: the steps of librdmacm, each waited for on a descriptor of its own; no thread.
#include "runtime/transport/verbs/cm_connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/clock.h"
#include "runtime/base/own_fds.h"
#include "runtime/transport/verbs/cm_private_data.h"

namespace tidepool::verbs {
namespace {

// 4.096 us * 2^16 = 0.27 s until a packet is sent again, seven times: a server that has gone is
// given up after about two seconds, before the requests' own timeout.
constexpr uint8_t kAckTimeout = 16;
constexpr uint8_t kRetries = 7;
// More reads than this under way at a time help no network.
constexpr int kMostReads = 16;

/// The descriptor stays open though the program closes all it finds. Its number may change.
void keep(int& fd) {
  if (!isOwnFd(fd)) fd = keepFd(fd);
}

int milliseconds(Nanoseconds time) {
  return static_cast<int>(std::clamp<uint64_t>(time.value() / 1'000'000, 1, 3'600'000));
}

}  // namespace

CmConnection::CmConnection(const Library& library) : library_(library), owner_(getpid()) {}

CmConnection::~CmConnection() {
  const bool inherited = getpid() != owner_;
  for (const int fd :
       {channel_ != nullptr ? channel_->fd : -1, events_ != nullptr ? events_->fd : -1}) {
    if (fd < 0) continue;
    forgetOwnFd(fd);
    if (inherited) close(fd);
  }
  if (inherited) return;
  // First the queue pair: when it has gone the device touches our memory no more.
  if (id_ != nullptr && id_->qp != nullptr) {
    (void)library_.cm.disconnect(id_);
    library_.cm.destroy_qp(id_);
  }
  if (registered_ != nullptr) (void)library_.dereg_mr(registered_);
  if (completions_ != nullptr) (void)library_.destroy_cq(completions_);
  if (events_ != nullptr) (void)library_.destroy_comp_channel(events_);
  if (id_ != nullptr) (void)library_.cm.destroy_id(id_);
  if (channel_ != nullptr) library_.cm.destroy_event_channel(channel_);
}

Result<std::unique_ptr<CmConnection>> CmConnection::connect(const Library& library,
                                                            const Endpoint& server, uint16_t port,
                                                            const wire::Token& ticket,
                                                            const ConnectionSizes& sizes,
                                                            Nanoseconds timeout) {
  std::unique_ptr<CmConnection> made(new CmConnection(library));
  TP_TRY(made->resolve(server, port, timeout));
  TP_TRY(made->watch());
  TP_TRY(made->makeQueues(sizes));
  TP_TRY(made->registerMemory(sizes.memory));
  TP_TRY(made->shakeHands(ticket, timeout));
  return made;
}

/// Waits for one event. Others mean that the connection cannot be had.
Status CmConnection::expect(rdma_cm_event_type wanted, Nanoseconds timeout) {
  MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + timeout;
  rdma_cm_event* event = nullptr;
  while (library_.cm.get_cm_event(channel_, &event) != 0) {
    if (errno != EAGAIN && errno != EINTR) {
      return failErrno(ErrorCode::kUnreachable, "RDMA connection management failed");
    }
    const Nanoseconds now = clock.now();
    if (now >= deadline) {
      return fail(ErrorCode::kTimedOut, "no RDMA connection within the time allowed");
    }
    pollfd waiting = {channel_->fd, POLLIN, 0};
    (void)poll(&waiting, 1, milliseconds(deadline - now));
  }
  const rdma_cm_event_type came = event->event;
  const int status = event->status;
  (void)library_.cm.ack_cm_event(event);
  if (came == wanted) return {};
  return fail(ErrorCode::kUnreachable, "no RDMA connection: %s (%d)", library_.cm.event_str(came),
              status);
}

Status CmConnection::stillUp() {
  if (device_ != nullptr) TP_TRY(device_->verdict());
  rdma_cm_event* event = nullptr;
  while (library_.cm.get_cm_event(channel_, &event) == 0) {
    const rdma_cm_event_type came = event->event;
    // Until it is acknowledged, the connection cannot be destroyed.
    (void)library_.cm.ack_cm_event(event);
    switch (came) {
      case RDMA_CM_EVENT_DEVICE_REMOVAL:
        return fail(ErrorCode::kUnreachable, "the RDMA device has gone");
      case RDMA_CM_EVENT_DISCONNECTED:
      case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        return fail(ErrorCode::kUnreachable, "the memory server ended the RDMA connection");
      default:
        break;
    }
  }
  return {};
}

Status CmConnection::resolve(const Endpoint& server, uint16_t port, Nanoseconds timeout) {
  channel_ = library_.cm.create_event_channel();
  if (channel_ == nullptr) {
    return failErrno(ErrorCode::kUnsupported, "cannot open /dev/infiniband/rdma_cm");
  }
  keep(channel_->fd);
  if (fcntl(channel_->fd, F_SETFL, O_NONBLOCK) != 0) {
    return failErrno(ErrorCode::kUnsupported, "cannot use /dev/infiniband/rdma_cm");
  }
  if (library_.cm.create_id(channel_, &id_, nullptr, RDMA_PS_TCP) != 0) {
    return failErrno(ErrorCode::kUnsupported, "cannot make an RDMA connection");
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* address = nullptr;
  if (getaddrinfo(server.host, server.port, &hints, &address) != 0) {
    return fail(ErrorCode::kInvalidArgument, "'%s' is not an address in numbers", server.host);
  }
  // IPv4 and IPv6 have the port in the same place.
  reinterpret_cast<sockaddr_in*>(address->ai_addr)->sin_port = htons(port);
  const int asked = library_.cm.resolve_addr(id_, nullptr, address->ai_addr, milliseconds(timeout));
  const int error = errno;
  freeaddrinfo(address);
  if (asked != 0) {
    return tl::unexpected(Error::fromErrno(ErrorCode::kUnreachable, error,
                                           "no RDMA device leads to %s", server.host));
  }
  TP_TRY(expect(RDMA_CM_EVENT_ADDR_RESOLVED, timeout));
  // Refused by old kernels, which have a timeout of their own.
  uint8_t ack_timeout = kAckTimeout;
  (void)library_.cm.set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout,
                               sizeof ack_timeout);
  if (library_.cm.resolve_route(id_, milliseconds(timeout)) != 0) {
    return failErrno(ErrorCode::kUnreachable, "no RDMA route to %s", server.host);
  }
  return expect(RDMA_CM_EVENT_ROUTE_RESOLVED, timeout);
}

/// From now on managementFd() tells of the connection's end and of the device's.
Status CmConnection::watch() {
  management_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!management_.valid()) return failErrno(ErrorCode::kIo, "cannot make an epoll descriptor");
  management_.keep();
  device_ = DeviceWatch::of(library_, id_->verbs->device);
  const int of_device = device_ == nullptr ? -1 : device_->eventsFd();
  const int of_failure = device_ == nullptr ? -1 : device_->failedFd();
  for (const int fd : {channel_->fd, of_device, of_failure}) {
    if (fd < 0) continue;
    epoll_event wanted = {};
    wanted.events = EPOLLIN;
    if (epoll_ctl(management_.get(), EPOLL_CTL_ADD, fd, &wanted) != 0) {
      return failErrno(ErrorCode::kIo, "cannot wait for an RDMA device");
    }
  }
  return {};
}

Status CmConnection::makeQueues(const ConnectionSizes& sizes) {
  // The device's context is librdmacm's, one for all connections.
  keep(id_->verbs->cmd_fd);
  keep(id_->verbs->async_fd);
  events_ = library_.create_comp_channel(id_->verbs);
  if (events_ == nullptr) {
    return failErrno(ErrorCode::kUnsupported, "cannot wait for RDMA completions");
  }
  keep(events_->fd);
  if (fcntl(events_->fd, F_SETFL, O_NONBLOCK) != 0) {
    return failErrno(ErrorCode::kUnsupported, "cannot wait for RDMA completions");
  }
  // One more: that of a work request which failed is followed by all others'.
  completions_ =
      library_.create_cq(id_->verbs, static_cast<int>(sizes.depth + 1), nullptr, events_, 0);
  if (completions_ == nullptr) {
    return failErrno(ErrorCode::kUnsupported, "cannot make an RDMA completion queue");
  }
  ibv_qp_init_attr wanted = {};
  wanted.qp_type = IBV_QPT_RC;
  wanted.send_cq = completions_;
  wanted.recv_cq = completions_;
  wanted.cap.max_send_wr = sizes.depth;
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_recv_wr = 1;
  wanted.cap.max_recv_sge = 1;
  wanted.cap.max_inline_data = sizes.inline_data;
  // What is told of the device does not say how much it carries so: some refuse what is too much.
  while (library_.cm.create_qp(id_, nullptr, &wanted) != 0) {
    if (wanted.cap.max_inline_data == 0) {
      return failErrno(ErrorCode::kUnsupported, "cannot make an RDMA queue pair");
    }
    wanted.cap.max_inline_data /= 2;
  }
  // It may be more than was asked for; then a longer piece would do without the copy.
  inline_data_ = std::min(wanted.cap.max_inline_data, sizes.inline_data);
  return {};
}

Status CmConnection::registerMemory(Bytes size) {
  auto memory = Mapping::anonymous(size);
  if (!memory) return tl::unexpected(memory.error());
  memory_ = std::move(*memory);
  // The device writes to these very pages; a child of fork() would take some of them over.
  (void)madvise(memory_.data(), size.value(), MADV_DONTFORK);
  registered_ = library_.reg_mr(id_->pd, memory_.data(), size.value(), IBV_ACCESS_LOCAL_WRITE);
  if (registered_ == nullptr) {
    return failErrno(ErrorCode::kNoMemory,
                     "cannot lock memory for RDMA (raise the limit: ulimit -l)");
  }
  return {};
}

Status CmConnection::shakeHands(const wire::Token& ticket, Nanoseconds timeout) {
  ibv_device_attr device = {};
  if (library_.query_device(id_->verbs, &device) != 0) {
    return fail(ErrorCode::kUnsupported, "the RDMA device does not answer");
  }
  std::byte shown[kPrivateSize];
  encodeTicket(ticket, shown);
  rdma_conn_param wanted = {};
  wanted.private_data = shown;
  wanted.private_data_len = sizeof shown;
  wanted.initiator_depth =
      static_cast<uint8_t>(std::clamp(device.max_qp_init_rd_atom, 1, kMostReads));
  wanted.retry_count = kRetries;
  wanted.rnr_retry_count = kRetries;
  if (library_.cm.connect(id_, &wanted) != 0) {
    return failErrno(ErrorCode::kUnreachable, "no RDMA connection");
  }
  return expect(RDMA_CM_EVENT_ESTABLISHED, timeout);
}

}  // namespace tidepool::verbs
