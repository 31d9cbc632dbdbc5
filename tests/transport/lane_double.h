// SPDX-License-Identifier: Apache-2.0
// A double of both ends of one-sided access, for machines without RDMA: tickets and revocation as
// the real ones have them, and a lane that moves pieces as late as it may, in reap(), so that a
// client which lets its two ways get ahead of one another is found out. Faults by count.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>

#include "fabricmgr/memserver/one_sided.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"
#include "runtime/transport/page_lane.h"

namespace tidepool {

class LaneDouble final : public memserver::OneSided, public LaneSource {
 public:
  // What goes wrong, and what there is; set before it is used.
  bool is_usable = true;
  bool gives_offers = true;
  bool connects = true;
  uint64_t pieces_until_failure = UINT64_MAX;  // of each lane
  size_t room = 8;                             // pieces that a lane takes at a time

  Result<wire::LaneOffer> open(const std::shared_ptr<memserver::Region>& region, Epoch epoch,
                               const sockaddr_storage&) override {
    if (!gives_offers) return fail(ErrorCode::kNoMemory, "no memory to pin");
    MutexLock lock(mutex_);
    wire::LaneOffer offer;
    ++opened_;
    memcpy(offer.ticket.bytes.data(), &opened_, sizeof opened_);
    offer.address = reinterpret_cast<uintptr_t>(region->data());
    offer.length = region->capacity().value();
    offer.rkey = static_cast<uint32_t>(opened_);
    offer.port = 1;
    lanes_[opened_] = {region, epoch};
    region->pin();
    return offer;
  }
  void close(const wire::Token& ticket) override {
    MutexLock lock(mutex_);
    ++closed_;
    if (const auto lane = lanes_.extract(numberOf(ticket))) lane.mapped().region->unpin();
  }
  void revoke(uint64_t region, Epoch epoch) override {
    MutexLock lock(mutex_);
    std::erase_if(lanes_, [&](const auto& entry) {
      const Admitted& lane = entry.second;
      if (lane.region->id() != region || lane.epoch >= epoch) return false;
      lane.region->unpin();
      return true;
    });
  }

  Status usable() override {
    if (!is_usable) return fail(ErrorCode::kUnsupported, "none here");
    return {};
  }
  Result<std::unique_ptr<PageLane>> connect(const Endpoint&, const wire::LaneOffer& offer, LaneLoad,
                                            Nanoseconds) override {
    if (!connects) return fail(ErrorCode::kUnreachable, "no way there");
    return std::unique_ptr<PageLane>(new Lane(*this, offer));
  }

  uint64_t opened() const {
    MutexLock lock(mutex_);
    return opened_;
  }
  uint64_t closed() const {
    MutexLock lock(mutex_);
    return closed_;
  }
  uint64_t moved() const {
    MutexLock lock(mutex_);
    return moved_;
  }

 private:
  struct Admitted {
    std::shared_ptr<memserver::Region> region;
    Epoch epoch;
  };

  class Lane final : public PageLane {
   public:
    Lane(LaneDouble& owner, const wire::LaneOffer& offer)
        : owner_(owner), offer_(offer), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
    bool add(const LanePiece& piece) override {
      if (pieces_.size() == owner_.room) return false;
      pieces_.push_back({piece, {}});
      if (piece.direction == LanePiece::Direction::kWrite) {
        pieces_.back().written.assign(piece.memory, piece.memory + piece.bytes);
      }
      return true;
    }
    Status post(Ends) override {
      posted_ = pieces_.size();
      const uint64_t one = 1;
      EXPECT_EQ(write(event_.get(), &one, sizeof one), ssize_t{sizeof one});
      return {};
    }
    /// One piece at a time: what is more is a matter of luck with a device, too.
    Result<uint64_t> reap() override {
      if (posted_ == 0) {
        uint64_t ignored;
        [[maybe_unused]] const ssize_t got = read(event_.get(), &ignored, sizeof ignored);
        return 0;
      }
      if (done_++ == owner_.pieces_until_failure || !owner_.move(offer_, pieces_.front())) {
        return fail(ErrorCode::kUnreachable, "the lane broke");
      }
      const uint64_t bytes = pieces_.front().piece.bytes;
      pieces_.pop_front();
      --posted_;
      return bytes;
    }
    bool lookout() override { return false; }
    int fd() const override { return event_.get(); }

    struct Held {
      LanePiece piece;
      std::vector<std::byte> written;
    };

   private:
    LaneDouble& owner_;
    const wire::LaneOffer offer_;
    const UniqueFd event_;
    std::deque<Held> pieces_;
    size_t posted_ = 0;
    uint64_t done_ = 0;
  };

  static uint64_t numberOf(const wire::Token& ticket) {
    uint64_t number;
    memcpy(&number, ticket.bytes.data(), sizeof number);
    return number;
  }

  /// What the device does: false for a key that opens nothing.
  bool move(const wire::LaneOffer& offer, const Lane::Held& held) {
    MutexLock lock(mutex_);
    if (!lanes_.contains(numberOf(offer.ticket))) return false;
    auto* const there = reinterpret_cast<std::byte*>(offer.address) + held.piece.offset;
    if (held.piece.direction == LanePiece::Direction::kRead) {
      copy(held.piece.memory, there, held.piece.bytes);
    } else {
      copy(there, held.written.data(), held.piece.bytes);
    }
    ++moved_;
    return true;
  }
  /// As a device does: ThreadSanitizer sees nothing of it, nor that an answer on the connection is
  /// what orders it after the server's own use of the memory.
  static void copy(void* to, const void* from, size_t bytes) {
#if defined(TIDEPOOL_SANITIZED_THREAD) && defined(__x86_64__)
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
    memcpy(to, from, bytes);
#endif
  }

  mutable Mutex mutex_;
  std::map<uint64_t, Admitted> lanes_ TP_GUARDED_BY(mutex_);
  uint64_t opened_ TP_GUARDED_BY(mutex_) = 0;
  uint64_t closed_ TP_GUARDED_BY(mutex_) = 0;
  uint64_t moved_ TP_GUARDED_BY(mutex_) = 0;
};

}  // namespace tidepool
