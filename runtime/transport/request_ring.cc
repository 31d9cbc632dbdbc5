// SPDX-License-Identifier: Apache-2.0
// RequestRing. Indices only grow, but for startOver(); slot(i) is ring entry i modulo its size.
#include "runtime/transport/request_ring.h"

#include <bit>

#include "runtime/base/check.h"

namespace tidepool {

void RequestRing::Slot::set(const wire::Request& request, Way by, std::span<const std::byte> first,
                            std::span<const std::byte> second, std::span<std::byte> answer_to) {
  tag = request.tag;
  to = answer_to.data();
  TP_CHECK(answer_to.size() <= UINT32_MAX && first.size() + second.size() == request.payload);
  answer = static_cast<uint32_t>(answer_to.size());
  total = static_cast<uint32_t>(sizeof header + first.size() + second.size());
  way = by;
  own = false;
  offset = request.offset;
  length = request.length;
  row = request.row_bytes;
  parts[0] = {header, sizeof header};
  parts[1] = {const_cast<std::byte*>(first.data()), first.size()};
  parts[2] = {const_cast<std::byte*>(second.data()), second.size()};
  wire::encode(request, header);
}

Status RequestRing::allocate(uint64_t most, uint64_t spare) {
  const uint64_t slots = std::bit_ceil(most + spare);
  auto ring = Mapping::anonymous(Bytes(roundUp(slots * sizeof(Slot), kPageSize)));
  if (!ring) return tl::unexpected(ring.error());
  ring_ = std::move(*ring);
  mask_ = slots - 1;
  most_ = most;
  return {};
}

bool RequestRing::mayStart() {
  if (head_ == sent_ && sent_offset_ == 0) way_ = next().way;
  return next().way == way_;
}

size_t RequestRing::gather(std::span<iovec> parts) const {
  size_t used = 0;
  size_t skip = sent_offset_;
  for (uint64_t index = sent_; index != tail_ && used + 3 <= parts.size(); ++index) {
    if (slot(index).way != Way::kStream) break;
    for (const iovec& part : slot(index).parts) {
      if (skip >= part.iov_len) {
        skip -= part.iov_len;
        continue;
      }
      parts[used++] = {static_cast<std::byte*>(part.iov_base) + skip, part.iov_len - skip};
      skip = 0;
    }
  }
  return used;
}

void RequestRing::advance(size_t bytes) {
  sent_offset_ += bytes;
  while (sent_ != tail_ && sent_offset_ >= next().bytes()) {
    sent_offset_ -= next().bytes();
    ++sent_;
  }
  // Nothing is sent that was not asked for.
  TP_CHECK(sent_ != tail_ || sent_offset_ == 0);
}

void RequestRing::end() {
  TP_CHECK(!empty());
  if (sent_ == head_) ++sent_;
  ++head_;
}

void RequestRing::startOver(const wire::Request& first, Nanoseconds now) {
  TP_CHECK_OP(size(), <=, mask_);
  Slot& added = slot(--head_);
  added.set(first, Way::kStream, {}, {}, {});
  added.own = true;
  startOver(now);
}

void RequestRing::startOver(Nanoseconds now) {
  for (uint64_t index = head_; index != tail_; ++index) {
    slot(index).way = Way::kStream;
    slot(index).queued = now;
  }
  sent_ = head_;
  sent_offset_ = 0;
  way_ = Way::kStream;
}

}  // namespace tidepool
