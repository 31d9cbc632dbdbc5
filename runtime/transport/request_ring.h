// SPDX-License-Identifier: Apache-2.0
// The requests of one connection to a memory server that have not ended, oldest first. They are
// sent and end in their order. Owned and used by one thread; allocates in allocate() only. The
// memory of a request is borrowed.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>

#include "runtime/base/debug_check.h"
#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/transport/wire.h"

namespace tidepool {

class RequestRing {
 public:
  /// Over the connection, or through a lane beside it. Requests that are on their way at one time
  /// all go the same way, so that they take effect and end in their order.
  enum class Way : uint8_t { kStream, kLane };

  struct Slot {
    uint64_t tag;
    std::byte* to;    // where the answer's payload goes; null: none
    uint32_t answer;  // bytes of payload that a good answer carries
    uint32_t total;   // bytes on the connection
    Way way;
    bool own;         // the client's: its end is nobody else's business
    uint64_t offset;  // what a lane needs to know
    uint32_t length;
    uint32_t row;  // bytes of one; 0: pages
    Nanoseconds queued;
    iovec parts[3];  // its bytes on the connection; empty ones are skipped
    std::byte header[wire::kRequestSize];

    /// All but `queued`, for a request whose header is followed by `first` and `second`.
    void set(const wire::Request& request, Way by, std::span<const std::byte> first,
             std::span<const std::byte> second, std::span<std::byte> answer_to);
    size_t bytes() const { return way == Way::kLane ? length : total; }
  };

  /// Room for `most` requests, and for `spare` of the client's own beside. Errors: kNoMemory.
  Status allocate(uint64_t most, uint64_t spare);

  /// A power of two.
  uint64_t most() const { return most_; }
  size_t size() const { return tail_ - head_; }
  bool empty() const { return head_ == tail_; }
  bool full() const { return size() >= most_; }
  /// How many, from the oldest on, have been sent wholly.
  size_t sent() const { return sent_ - head_; }
  bool allSent() const { return sent_ == tail_; }
  /// The one that is `index` after the oldest.
  const Slot& operator[](size_t index) const {
    TP_DCHECK_OP(index, <, size());
    return slot(head_ + index);
  }
  const Slot& oldest() const {
    TP_DCHECK(!empty());
    return slot(head_);
  }
  /// The oldest that has not been sent wholly, and how much of it has.
  const Slot& next() const {
    TP_DCHECK(!allSent());
    return slot(sent_);
  }
  size_t sentOfNext() const { return sent_offset_; }
  /// That of the requests on their way, or of the last one.
  Way way() const { return way_; }

  /// A place for one more, to be set. Not when full.
  Slot& add() {
    TP_CHECK_OP(size(), <=, mask_);
    return slot(tail_++);
  }
  /// Whether the next one, of which there is one, may be sent: its way is that of those before it,
  /// or these have all ended.
  bool mayStart();
  /// Lists what is still to be sent on the connection, oldest first; returns the number of parts.
  size_t gather(std::span<iovec> parts) const;
  /// So many bytes more have been sent.
  void advance(size_t bytes);
  /// The oldest one has ended, sent or not.
  void end();
  /// All are sent over the connection from the beginning.
  void startOver(Nanoseconds now);
  /// The same, after `first`, a request of the client's own, for which there is room.
  void startOver(const wire::Request& first, Nanoseconds now);

 private:
  Slot& slot(uint64_t index) const { return reinterpret_cast<Slot*>(ring_.data())[index & mask_]; }

  // [head_, sent_) have been sent, [sent_, tail_) not or in part: sent_offset_ bytes of slot sent_.
  Mapping ring_;
  uint64_t mask_ = 0;
  uint64_t most_ = 0;
  uint64_t head_ = 0;
  uint64_t sent_ = 0;
  uint64_t tail_ = 0;
  size_t sent_offset_ = 0;
  Way way_ = Way::kStream;
};

}  // namespace tidepool
