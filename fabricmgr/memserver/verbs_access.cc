// SPDX-License-Identifier: Apache-2.0
// VerbsAccess: who is let in where, tickets, and the thread that takes what librdmacm reports. One
// mutex guards all tables. Identifiers are destroyed by that thread alone, since this waits for
// events of theirs that it may have in hand.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "fabricmgr/memserver/one_sided.h"
#include "fabricmgr/memserver/throttled_log.h"
#include "fabricmgr/memserver/verbs_registration.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"
#include "runtime/transport/connection.h"
#include "runtime/transport/verbs/cm_private_data.h"
#include "runtime/transport/verbs/library.h"

namespace tidepool::memserver {
namespace {

using verbs::Library;

constexpr int kBacklog = 256;
constexpr int kMostReads = 16;  // of one client under way at a time

class VerbsAccess final : public OneSided {
 public:
  explicit VerbsAccess(const Library& library) : library_(library) {}
  ~VerbsAccess() override;
  Status start(int listener);

  Result<wire::LaneOffer> open(const std::shared_ptr<Region>& region, Epoch epoch,
                               const sockaddr_storage& at) override TP_EXCLUDES(mutex_);
  void close(const wire::Token& ticket) override TP_EXCLUDES(mutex_);
  void revoke(uint64_t region, Epoch epoch) override TP_EXCLUDES(mutex_);

 private:
  using Key = std::array<uint8_t, 16>;
  struct Lane {
    std::shared_ptr<Registration> registration;
    rdma_cm_id* id = nullptr;  // null: nobody has come with the ticket yet
  };

  Result<ibv_context*> deviceAt(sockaddr_storage at);
  Result<std::shared_ptr<Registration>> registrationOf(const std::shared_ptr<Region>& region,
                                                       Epoch epoch, ibv_context* device)
      TP_EXCLUDES(mutex_);
  bool inTheWay(uint64_t region, Epoch epoch) const TP_REQUIRES(mutex_);
  void end(Lane& lane) TP_REQUIRES(mutex_);
  void forgetUnused(const std::shared_ptr<Registration>& registration) TP_REQUIRES(mutex_);
  void run();
  bool takeEvents();
  void destroyDoomed() TP_EXCLUDES(mutex_);
  Status admit(const rdma_cm_event& event) TP_EXCLUDES(mutex_);
  void disconnected(const rdma_cm_id* id) TP_EXCLUDES(mutex_);
  void wake();

  const Library& library_;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* listener_ = nullptr;
  uint16_t port_ = 0;
  UniqueFd wake_;
  ThrottledLog log_{kMonotonicClock};  // the thread's
  Mutex mutex_;
  CondVar changed_;
  std::map<Key, Lane> lanes_ TP_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<Registration>> registrations_ TP_GUARDED_BY(mutex_);
  // For the thread: identifiers without queue pair to be destroyed, memory to be unpinned.
  std::vector<rdma_cm_id*> doomed_ TP_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Registration>> unused_ TP_GUARDED_BY(mutex_);
  bool stopping_ TP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

Status VerbsAccess::start(int listener) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  const auto port = boundPort(listener);
  if (!port) return tl::unexpected(port.error());
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return failErrno(ErrorCode::kIo, "cannot read the address of a socket");
  }
  port_ = *port;
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  channel_ = library_.cm.create_event_channel();
  if (!wake_.valid() || channel_ == nullptr || fcntl(channel_->fd, F_SETFL, O_NONBLOCK) != 0 ||
      library_.cm.create_id(channel_, &listener_, nullptr, RDMA_PS_TCP) != 0) {
    return failErrno(ErrorCode::kUnsupported, "cannot use /dev/infiniband/rdma_cm");
  }
  if (library_.cm.bind_addr(listener_, reinterpret_cast<sockaddr*>(&address)) != 0 ||
      library_.cm.listen(listener_, kBacklog) != 0) {
    return failErrno(ErrorCode::kUnsupported, "no RDMA device has the address that is listened on");
  }
  thread_ = std::thread([this] { run(); });
  return {};
}

VerbsAccess::~VerbsAccess() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (auto& [ticket, lane] : lanes_) end(lane);
    lanes_.clear();
    registrations_.clear();
  }
  wake();
  if (thread_.joinable()) thread_.join();
  destroyDoomed();
  if (listener_ != nullptr) (void)library_.cm.destroy_id(listener_);
  if (channel_ != nullptr) library_.cm.destroy_event_channel(channel_);
}

void VerbsAccess::wake() {
  const uint64_t one = 1;
  if (!wake_.valid()) return;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

/// The device that a client reaches which has reached the local address `at`.
Result<ibv_context*> VerbsAccess::deviceAt(sockaddr_storage at) {
  reinterpret_cast<sockaddr_in&>(at).sin_port = 0;  // in the same place for IPv6
  rdma_cm_id* probe = nullptr;
  if (library_.cm.create_id(channel_, &probe, nullptr, RDMA_PS_TCP) != 0) {
    return failErrno(ErrorCode::kUnsupported, "cannot use /dev/infiniband/rdma_cm");
  }
  const int bound = library_.cm.bind_addr(probe, reinterpret_cast<sockaddr*>(&at));
  // librdmacm keeps its devices open as long as the process lives.
  ibv_context* const device = bound == 0 ? probe->verbs : nullptr;
  (void)library_.cm.destroy_id(probe);
  if (device == nullptr) {
    return fail(ErrorCode::kUnsupported, "no RDMA device has the address that it came to");
  }
  return device;
}

/// Whether the region has a registration that is being made, or one of an older epoch: the thread
/// that fenced that one off is about to revoke it.
bool VerbsAccess::inTheWay(uint64_t region, Epoch epoch) const {
  const auto found = registrations_.find(region);
  return found != registrations_.end() && (found->second->making || found->second->epoch < epoch);
}

/// The region's registration in that epoch. Making one takes as long as the kernel needs to find
/// all of its memory, and holds nobody up but those who ask for the same.
Result<std::shared_ptr<Registration>> VerbsAccess::registrationOf(
    const std::shared_ptr<Region>& region, Epoch epoch, ibv_context* device) {
  auto made = std::make_shared<Registration>(library_);
  {
    MutexLock lock(mutex_);
    while (inTheWay(region->id(), epoch)) changed_.wait(mutex_);
    // Fencing a region raises its epoch first, and revokes then.
    if (region->epoch() != epoch) return fail(ErrorCode::kStaleEpoch, "the region has moved on");
    const auto found = registrations_.find(region->id());
    if (found != registrations_.end()) {
      if (found->second->device == device && found->second->region == region) {
        ++found->second->awaited;
        return found->second;
      }
      return fail(ErrorCode::kUnsupported, "the region is in use by another RDMA device");
    }
    made->making = true;
    registrations_[region->id()] = made;
  }
  const Status status = made->make(region, epoch, device);
  MutexLock lock(mutex_);
  made->making = false;
  changed_.notifyAll();
  // Revoked meanwhile: it is no longer listed, and ends with this last reference to it.
  if (made->over) return fail(ErrorCode::kStaleEpoch, "the region has moved on");
  if (status) {
    ++made->awaited;
    return made;
  }
  registrations_.erase(region->id());
  return tl::unexpected(status.error());
}

Result<wire::LaneOffer> VerbsAccess::open(const std::shared_ptr<Region>& region, Epoch epoch,
                                          const sockaddr_storage& at) {
  const auto device = deviceAt(at);
  if (!device) return tl::unexpected(device.error());
  wire::LaneOffer offer;
  auto& ticket = offer.ticket.bytes;
  if (getrandom(ticket.data(), ticket.size(), 0) != static_cast<ssize_t>(ticket.size())) {
    return failErrno(ErrorCode::kInternal, "cannot make a random ticket");
  }
  auto registration = registrationOf(region, epoch, *device);
  if (!registration) return tl::unexpected(registration.error());
  MutexLock lock(mutex_);
  --(*registration)->awaited;
  if ((*registration)->over) {
    return fail(ErrorCode::kStaleEpoch, "the region has moved on");
  }
  offer.address = reinterpret_cast<uintptr_t>(region->data());
  offer.length = (*registration)->length;
  offer.rkey = (*registration)->memory->rkey;
  offer.port = port_;
  lanes_[ticket].registration = std::move(*registration);
  return offer;
}

/// Takes the queue pair away. The identifier is left to the thread.
void VerbsAccess::end(Lane& lane) {
  if (lane.id == nullptr) return;
  library_.cm.destroy_qp(lane.id);
  doomed_.push_back(lane.id);
  lane.id = nullptr;
}

/// Has the thread unpin what nobody uses any more.
void VerbsAccess::forgetUnused(const std::shared_ptr<Registration>& registration) {
  const auto found = registrations_.find(registration->region->id());
  if (found == registrations_.end() || found->second != registration) return;
  if (registration->making || registration->awaited > 0) return;
  for (const auto& [ticket, lane] : lanes_) {
    if (lane.registration == registration) return;
  }
  registration->over = true;
  unused_.push_back(registration);
  registrations_.erase(found);
  changed_.notifyAll();
}

void VerbsAccess::close(const wire::Token& ticket) {
  {
    MutexLock lock(mutex_);
    const auto found = lanes_.find(ticket.bytes);
    if (found == lanes_.end()) return;
    end(found->second);
    const auto registration = std::move(found->second.registration);
    lanes_.erase(found);
    forgetUnused(registration);
  }
  wake();
}

void VerbsAccess::revoke(uint64_t region, Epoch epoch) {
  std::shared_ptr<Registration> ended;
  {
    MutexLock lock(mutex_);
    const auto found = registrations_.find(region);
    if (found == registrations_.end() || found->second->epoch >= epoch) return;
    ended = std::move(found->second);
    registrations_.erase(found);
    ended->over = true;
    changed_.notifyAll();
    // Nobody knows the key of one being made, nor has a queue pair there: its maker ends it.
    if (ended->making) return;
  }
  // Queue pairs stay for now: they answer what comes with an error, which is heard sooner than
  // silence.
  ended->end();
}

void VerbsAccess::run() {
  for (;;) {
    pollfd waits[] = {{channel_->fd, POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    (void)poll(waits, 2, -1);
    uint64_t ignored;
    [[maybe_unused]] const ssize_t got = read(wake_.get(), &ignored, sizeof ignored);
    while (takeEvents()) {
    }
    destroyDoomed();
    MutexLock lock(mutex_);
    if (stopping_) return;
  }
}

/// One event. False: there is none.
bool VerbsAccess::takeEvents() {
  rdma_cm_event* event = nullptr;
  if (library_.cm.get_cm_event(channel_, &event) != 0) return false;
  rdma_cm_id* const id = event->id;
  const rdma_cm_event_type type = event->event;
  Status admitted;
  if (type == RDMA_CM_EVENT_CONNECT_REQUEST) admitted = admit(*event);
  (void)library_.cm.ack_cm_event(event);
  switch (type) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
      if (admitted) break;
      log_.warn(std::string("an RDMA connection was refused: ") + admitted.error().text());
      (void)library_.cm.reject(id, nullptr, 0);
      (void)library_.cm.destroy_id(id);
      break;
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      disconnected(id);
      break;
    default:
      break;
  }
  return true;
}

/// Somebody asks for a connection: with a ticket, on the right device, it is one.
Status VerbsAccess::admit(const rdma_cm_event& event) {
  const auto& asked = event.param.conn;
  const auto ticket = verbs::decodeTicket(
      {static_cast<const std::byte*>(asked.private_data), asked.private_data_len});
  if (!ticket) return fail(ErrorCode::kCorrupt, "it showed no ticket");
  MutexLock lock(mutex_);
  const auto found = lanes_.find(ticket->bytes);
  if (found == lanes_.end() || found->second.id != nullptr) {
    return fail(ErrorCode::kPermission, "its ticket is not valid");
  }
  Lane& lane = found->second;
  Registration& registration = *lane.registration;
  if (event.id->verbs != registration.device) {
    return fail(ErrorCode::kUnsupported, "it came to another device");
  }
  ibv_qp_init_attr wanted = {};
  wanted.qp_type = IBV_QPT_RC;
  wanted.send_cq = registration.completions;
  wanted.recv_cq = registration.completions;
  wanted.cap.max_send_wr = 1;
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_recv_wr = 1;
  wanted.cap.max_recv_sge = 1;
  if (library_.cm.create_qp(event.id, registration.domain, &wanted) != 0) {
    return failErrno(ErrorCode::kNoMemory, "the RDMA device has no queue pair for it");
  }
  ibv_device_attr device = {};
  (void)library_.query_device(registration.device, &device);
  rdma_conn_param granted = {};
  granted.responder_resources = static_cast<uint8_t>(std::clamp<int>(
      asked.responder_resources, 1, std::clamp(device.max_qp_rd_atom, 1, kMostReads)));
  granted.rnr_retry_count = asked.rnr_retry_count;
  if (library_.cm.accept(event.id, &granted) != 0) {
    const Error error =
        Error::fromErrno(ErrorCode::kUnreachable, errno, "it could not be accepted");
    library_.cm.destroy_qp(event.id);
    return tl::unexpected(error);
  }
  lane.id = event.id;
  return {};
}

/// The ticket has been used; the session goes on without.
void VerbsAccess::disconnected(const rdma_cm_id* id) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(lanes_.begin(), lanes_.end(),
                                  [id](const auto& entry) { return entry.second.id == id; });
  if (found == lanes_.end()) return;
  end(found->second);
  const auto registration = std::move(found->second.registration);
  lanes_.erase(found);
  forgetUnused(registration);
}

void VerbsAccess::destroyDoomed() {
  std::vector<rdma_cm_id*> doomed;
  std::vector<std::shared_ptr<Registration>> unused;  // the last references, but for queue pairs'
  {
    MutexLock lock(mutex_);
    doomed.swap(doomed_);
    unused.swap(unused_);
  }
  for (rdma_cm_id* const id : doomed) (void)library_.cm.destroy_id(id);
}

}  // namespace

Result<std::unique_ptr<OneSided>> startVerbs(int listener) {
  const auto library = verbs::library();
  if (!library) return tl::unexpected(library.error());
  return startVerbs(listener, **library);
}

Result<std::unique_ptr<OneSided>> startVerbs(int listener, const Library& library) {
  auto access = std::make_unique<VerbsAccess>(library);
  TP_TRY(access->start(listener));
  return std::unique_ptr<OneSided>(std::move(access));
}

}  // namespace tidepool::memserver
