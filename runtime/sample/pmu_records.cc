// SPDX-License-Identifier: Apache-2.0
// Perf ring decoding. See pmu_records.h. Numbers below are the kernel's stable ABI
// (linux/perf_event.h), repeated here so that the decoder builds and is tested everywhere.
#include "runtime/sample/pmu_records.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

constexpr uint32_t kRecordLost = 2;
constexpr uint32_t kRecordThrottle = 5;
constexpr uint32_t kRecordSample = 9;
constexpr uint32_t kRecordLostSamples = 13;

// perf_mem_data_src.mem_op, the low five bits.
constexpr uint64_t kMemOpStore = 4;

// Body of a sample of kPmuSampleType.
struct SampleBody {
  uint32_t process;
  uint32_t thread;
  uint64_t address;
  uint64_t weight;
  uint64_t data_source;
};
static_assert(sizeof(SampleBody) == 32);

}  // namespace

PmuRing::PmuRing(std::span<const std::byte> data) : data_(data) {
  TP_CHECK(std::has_single_bit(data.size()));
  TP_CHECK_OP(data.size(), >=, sizeof(Header));
}

void PmuRing::copy(uint64_t at, void* to, size_t bytes) const {
  TP_CHECK_OP(bytes, <=, data_.size());
  const size_t begin = at & (data_.size() - 1);
  const size_t first = std::min(bytes, data_.size() - begin);
  std::memcpy(to, data_.data() + begin, first);
  std::memcpy(static_cast<std::byte*>(to) + first, data_.data(), bytes - first);
}

bool PmuRing::sample(const Header& header, PmuSample& out) {
  SampleBody body;
  if (header.size < sizeof(Header) + sizeof(body)) {
    ++stats_.malformed;
    return false;
  }
  copy(tail_ + sizeof(Header), &body, sizeof(body));
  if (body.address == 0) {
    ++stats_.without_address;
    return false;
  }
  out.address = body.address;
  out.weight = static_cast<uint32_t>(std::min<uint64_t>(body.weight, UINT32_MAX));
  out.process = body.process;
  out.thread = body.thread;
  out.is_store = (body.data_source & kMemOpStore) != 0;
  ++stats_.samples;
  return true;
}

// LOST says {id, count}, LOST_SAMPLES {count}.
void PmuRing::loss(const Header& header) {
  const size_t at = sizeof(Header) + (header.type == kRecordLost ? sizeof(uint64_t) : 0);
  uint64_t count;
  if (header.size < at + sizeof(count)) {
    ++stats_.malformed;
    return;
  }
  copy(tail_ + at, &count, sizeof(count));
  stats_.lost += count;
}

size_t PmuRing::drain(uint64_t head, std::span<PmuSample> out) {
  size_t count = 0;
  // Positions only grow; a head that is behind, or more than a ring ahead, means that what lies
  // between cannot be told apart from overwritten bytes: start afresh from it.
  if (head - tail_ > data_.size()) {
    ++stats_.malformed;
    tail_ = head;
  }
  while (tail_ != head && count < out.size()) {
    const uint64_t available = head - tail_;
    Header header{};
    if (available >= sizeof(header)) copy(tail_, &header, sizeof(header));
    // The kernel's sizes are multiples of 8. Without a sound size the next record cannot be found.
    if (header.size < sizeof(header) || header.size > available || header.size % 8 != 0) {
      ++stats_.malformed;
      tail_ = head;
      break;
    }
    switch (header.type) {
      case kRecordSample:
        if (sample(header, out[count])) ++count;
        break;
      case kRecordLost:
      case kRecordLostSamples:
        loss(header);
        break;
      case kRecordThrottle:
        ++stats_.throttled;
        break;
      default:  // mmap, exit, unthrottle and whatever later kernels add: not ours to read
        break;
    }
    tail_ += header.size;
  }
  return count;
}

}  // namespace tidepool
