// SPDX-License-Identifier: Apache-2.0
// Decodes the records of a perf ring buffer (Intel PEBS, AMD IBS) into data addresses. Bytes in,
// values out: no kernel headers, no I/O. Trusts nothing it reads. Not thread-safe; the ring is
// borrowed for the call and must not be written while it is read below `head`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tidepool {

/// What perf_event_attr.sample_type must be for the samples to have the layout decoded here:
/// PERF_SAMPLE_TID | PERF_SAMPLE_ADDR | PERF_SAMPLE_WEIGHT | PERF_SAMPLE_DATA_SRC. Both PEBS and
/// IBS fill these in; the kernel hides where they differ.
inline constexpr uint64_t kPmuSampleType = 1u << 1 | 1u << 3 | 1u << 14 | 1u << 15;

/// One access to memory, as the processor saw it.
struct PmuSample {
  uint64_t address = 0;  // virtual, of the data
  uint32_t weight = 0;   // latency in cycles where the processor tells, else 0; saturated
  uint32_t process = 0;
  uint32_t thread = 0;
  bool is_store = false;
};

struct PmuRingStats {
  uint64_t samples = 0;
  uint64_t without_address = 0;  // IBS also samples operations that touch no data
  uint64_t lost = 0;             // samples the kernel dropped for want of room
  uint64_t throttled = 0;        // times the kernel paused the event: lower the rate
  uint64_t malformed = 0;        // records cut, or of impossible size
};

class PmuRing {
 public:
  /// `data` is the ring's data area (a power of two of bytes, without the control page).
  explicit PmuRing(std::span<const std::byte> data);

  /// Decodes the records between the reader's own position and `head` (data_head, read with
  /// acquire by the caller) into `out`; returns how many. Stops early when `out` is full: call
  /// again. Afterwards tail() is what the caller stores to data_tail, with release.
  size_t drain(uint64_t head, std::span<PmuSample> out);

  uint64_t tail() const { return tail_; }
  const PmuRingStats& stats() const { return stats_; }

 private:
  struct Header {
    uint32_t type;
    uint16_t misc;
    uint16_t size;
  };
  static_assert(sizeof(Header) == 8);

  /// Copies `bytes` from ring position `at`, around the end if need be.
  void copy(uint64_t at, void* to, size_t bytes) const;
  bool sample(const Header& header, PmuSample& out);
  void loss(const Header& header);

  std::span<const std::byte> data_;
  uint64_t tail_ = 0;
  PmuRingStats stats_;
};

}  // namespace tidepool
