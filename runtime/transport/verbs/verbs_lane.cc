// SPDX-License-Identifier: Apache-2.0
// The lane over a queue pair. Pieces lie in a ring of registered memory, and are posted as lists of
// work requests of which few are signalled: ends come in order, so one tells of all before it.
#include "runtime/transport/verbs/verbs_lane.h"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/transport/verbs/adaptive_spin.h"
#include "runtime/transport/verbs/cm_connection.h"
#include "runtime/transport/verbs/read_fence.h"

namespace tidepool {
namespace verbs {
namespace {

constexpr Bytes kRing = Bytes(kMiB);
static_assert(kRing.value() >= 2 * PageLane::kMostPiece);
// Of a long list of requests, which one call posts.
constexpr uint32_t kList = 128;

struct Sizes {
  ConnectionSizes connection;
  // Of a long list each such request is signalled, so that its begin can be used before its end has
  // come. A power of two, as the depth is.
  uint64_t signal_every;
};

/// Pages: what fills the ring and the network anyhow. Rows: some requests of a table, so that the
/// device is not out of work while the table's thread is busy elsewhere; and short ones that are
/// written go within the work request, which spares the device a read of memory.
Sizes sizesOf(LaneLoad load) {
  if (load == LaneLoad::kManyShort)
    return {{.depth = 2048, .inline_data = 256, .memory = kRing}, 64};
  return {{.depth = 128, .inline_data = 0, .memory = kRing}, 16};
}

int processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

class VerbsLane final : public PageLane {
 public:
  VerbsLane(const Library& library, std::unique_ptr<CmConnection> connection,
            const wire::LaneOffer& offer, const Sizes& sizes)
      : library_(library),
        connection_(std::move(connection)),
        offer_(offer),
        depth_(sizes.connection.depth),
        signal_every_(sizes.signal_every),
        spin_(processors()),
        fence_(depth_),
        entries_(depth_) {}

  bool add(const LanePiece& piece) override;
  Status post(Ends ends) override;
  Result<uint64_t> reap() override;
  bool lookout() override;
  int fd() const override { return connection_->events()->fd; }
  int endFd() const override { return connection_->managementFd(); }

 private:
  using Direction = LanePiece::Direction;
  /// A piece in the ring, and where its bytes lie there: [ring_end - bytes, ring_end). One that its
  /// work request carries has none there.
  struct Entry {
    LanePiece piece;
    uint64_t ring_end = 0;
  };
  Entry& entry(uint64_t index) { return entries_[index & (depth_ - 1)]; }
  std::byte* ringOf(const Entry& entry) const;
  bool isCarried(const LanePiece& piece) const {
    return piece.direction == Direction::kWrite && piece.bytes <= connection_->inlineData();
  }
  void describe(uint64_t index, ibv_send_wr& request, ibv_sge& part);
  Status postSome();
  Status arm();
  Result<bool> drain();
  Result<bool> takeEnds();
  void finish(uint64_t count);
  bool takeEvent();

  const Library& library_;
  const std::unique_ptr<CmConnection> connection_;
  const wire::LaneOffer offer_;
  const uint32_t depth_;
  const uint64_t signal_every_;
  AdaptiveSpin spin_;
  ReadFence fence_;
  MonotonicClock clock_;
  Nanoseconds posted_at_;

  // [first_, posted_) are under way, [posted_, added_) wait for post(). The bytes of the ring that
  // they have lie in [ring_begin_, ring_end_), which only grow.
  std::vector<Entry> entries_;
  uint64_t first_ = 0;
  uint64_t posted_ = 0;
  uint64_t added_ = 0;
  uint64_t ring_begin_ = 0;
  uint64_t ring_end_ = 0;
  uint64_t ended_ = 0;  // bytes, not reported yet
  bool armed_ = false;  // an event is asked for, and has not been taken
  bool due_ = false;    // an end has been seen since then: the event is there, or about to be
  bool quiet_ = false;  // the last reap() found nothing
  std::optional<Error> failed_;
};

std::byte* VerbsLane::ringOf(const Entry& entry) const {
  return connection_->memory() + (entry.ring_end - entry.piece.bytes) % kRing.value();
}

bool VerbsLane::add(const LanePiece& piece) {
  TP_CHECK_OP(piece.bytes, <=, kMostPiece);
  TP_CHECK_OP(piece.offset + piece.bytes, <=, offer_.length);
  if (added_ - first_ == depth_) return false;
  if (isCarried(piece)) {
    entry(added_++) = {piece, ring_end_};
    return true;
  }
  // A piece lies in one run: what is left before the ring's end is skipped if it is too little.
  const uint64_t to_end = kRing.value() - ring_end_ % kRing.value();
  const uint64_t begin = to_end < piece.bytes ? ring_end_ + to_end : ring_end_;
  if (begin + piece.bytes - ring_begin_ > kRing.value()) return false;
  ring_end_ = begin + piece.bytes;
  Entry& next = entry(added_++);
  next = {piece, ring_end_};
  if (piece.direction == Direction::kWrite) memcpy(ringOf(next), piece.memory, piece.bytes);
  return true;
}

void VerbsLane::describe(uint64_t index, ibv_send_wr& request, ibv_sge& part) {
  const Entry& what = entry(index);
  const bool read = what.piece.direction == Direction::kRead;
  const bool last = index + 1 == added_;
  const bool carried = isCarried(what.piece);
  part.addr = reinterpret_cast<uintptr_t>(carried ? what.piece.memory : ringOf(what));
  part.length = what.piece.bytes;
  part.lkey = connection_->memoryKey();
  request = {};
  request.wr_id = index;
  request.sg_list = &part;
  request.num_sge = 1;
  request.opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  if (carried) request.send_flags |= IBV_SEND_INLINE;
  if (last || (index & (signal_every_ - 1)) == 0) request.send_flags |= IBV_SEND_SIGNALED;
  if (fence_.holds(first_, index, what.piece)) request.send_flags |= IBV_SEND_FENCE;
  request.wr.rdma.remote_addr = offer_.address + what.piece.offset;
  request.wr.rdma.rkey = offer_.rkey;
  request.next = &request + 1;
}

Status VerbsLane::post(Ends ends) {
  if (posted_ == added_) return {};
  // Armed first, so that a thread that goes to sleep on fd() now is woken.
  if (ends == Ends::kTold) TP_TRY(arm());
  posted_at_ = clock_.now();
  quiet_ = false;
  while (posted_ != added_) TP_TRY(postSome());
  return {};
}

/// One list of requests.
Status VerbsLane::postSome() {
  std::array<ibv_send_wr, kList> requests;
  std::array<ibv_sge, kList> parts;
  size_t used = 0;
  for (; posted_ != added_ && used < kList; ++posted_, ++used) {
    describe(posted_, requests[used], parts[used]);
  }
  requests[used - 1].next = nullptr;
  ibv_send_wr* refused = nullptr;
  if (const int error = ibv_post_send(connection_->queuePair(), requests.data(), &refused)) {
    return tl::unexpected(Error::fromErrno(ErrorCode::kUnreachable, error,
                                           "the RDMA connection takes no more requests"));
  }
  return {};
}

/// The oldest `count` have ended, well.
void VerbsLane::finish(uint64_t count) {
  for (; count > 0; --count) {
    const Entry& done = entry(first_++);
    ended_ += done.piece.bytes;
    ring_begin_ = done.ring_end;
    if (done.piece.direction == Direction::kWrite) continue;
    memcpy(done.piece.memory, ringOf(done), done.piece.bytes);
  }
  if (first_ == posted_) spin_.note(clock_.now() - posted_at_);
}

/// A failure is final: the queue need not tell of it again.
Result<bool> VerbsLane::drain() {
  if (failed_) return tl::unexpected(*failed_);
  auto found = takeEnds();
  if (!found) failed_ = found.error();
  return found;
}

/// Takes ends off the completion queue until it is empty. False: it was.
Result<bool> VerbsLane::takeEnds() {
  std::array<ibv_wc, 16> ends;
  bool found = false;
  for (;;) {
    const int count =
        ibv_poll_cq(connection_->completions(), static_cast<int>(ends.size()), ends.data());
    if (count < 0) return fail(ErrorCode::kUnreachable, "the RDMA completion queue failed");
    if (count == 0) return found;
    found = true;
    due_ = armed_;
    for (int i = 0; i < count; ++i) {
      const ibv_wc& end = ends[static_cast<size_t>(i)];
      if (end.status != IBV_WC_SUCCESS) {
        return fail(ErrorCode::kUnreachable, "the RDMA connection failed: %s",
                    library_.wc_status_str(end.status));
      }
      TP_CHECK_OP(end.wr_id - first_, <, posted_ - first_);
      finish(end.wr_id + 1 - first_);
    }
  }
}

/// Takes the event that was asked for. False: it has not come.
bool VerbsLane::takeEvent() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  if (library_.get_cq_event(connection_->events(), &queue, &context) != 0) return false;
  library_.ack_cq_events(queue, 1);
  armed_ = false;
  due_ = false;
  return true;
}

/// Asks for an event with the next end, unless that has been done.
Status VerbsLane::arm() {
  if (armed_) return {};
  if (ibv_req_notify_cq(connection_->completions(), 0) != 0) {
    return fail(ErrorCode::kUnreachable, "the RDMA completion queue failed");
  }
  armed_ = true;
  return {};
}

Result<uint64_t> VerbsLane::reap() {
  // The queue first: to look at it is no system call. No event is taken that has not come, nor
  // left that would make fd() readable for nothing.
  auto found = drain();
  if (!found) return tl::unexpected(found.error());
  if (due_) (void)takeEvent();
  if (first_ != posted_ && !armed_) {
    TP_TRY(arm());
    // What came before the event was asked for raises none.
    found = drain();
    if (!found) return tl::unexpected(found.error());
  }
  // A thread that slept and finds nothing was woken by something else. Packets to a device that has
  // gone are answered by nobody, and their own timeout is long.
  const bool before = std::exchange(quiet_, ended_ == 0);
  if (quiet_ && before) {
    if (const Status up = connection_->stillUp(); !up) {
      failed_ = up.error();
      return tl::unexpected(*failed_);
    }
  }
  return std::exchange(ended_, 0);
}

bool VerbsLane::lookout() {
  const Nanoseconds budget = spin_.budget();
  if (budget == Nanoseconds(0)) return false;
  const Nanoseconds until = clock_.now() + budget;
  do {
    const auto found = drain();
    if (!found || *found) return true;  // reap() tells of a failure
  } while (clock_.now() < until);
  return false;
}

class VerbsSource final : public LaneSource {
 public:
  Status usable() override {
    const auto found = library();
    if (!found) return tl::unexpected(found.error());
    return {};
  }
  Result<std::unique_ptr<PageLane>> connect(const Endpoint& server, const wire::LaneOffer& offer,
                                            LaneLoad load, Nanoseconds timeout) override {
    const auto loaded = library();
    if (!loaded) return tl::unexpected(loaded.error());
    const Sizes sizes = sizesOf(load);
    auto made = CmConnection::connect(**loaded, server, offer.port, offer.ticket, sizes.connection,
                                      timeout);
    if (!made) return tl::unexpected(made.error());
    return std::unique_ptr<PageLane>(new VerbsLane(**loaded, std::move(*made), offer, sizes));
  }
};

}  // namespace
}  // namespace verbs

LaneSource& verbsLanes() {
  static constinit verbs::VerbsSource source;
  return source;
}

}  // namespace tidepool
