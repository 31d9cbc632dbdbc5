// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/device/erasure.h"

#include <algorithm>

namespace tidepool::fabric {

ScrubEvidence beginErasure(const Grant& grant, const Clock& wall_clock) {
  ScrubEvidence evidence;
  evidence.region = grant.region;
  evidence.device = grant.extents.front().device;
  evidence.epoch = grant.epoch;
  evidence.passes = 1;
  evidence.started = wall_clock.now();
  return evidence;
}

ReadBack::ReadBack(const ScrubEvidence& scrubbed, const Progress& progress)
    : evidence_(scrubbed), progress_(progress) {
  evidence_.bytes = evidence_.nonzero = Bytes();
}

void ReadBack::add(std::span<const std::byte> bytes) {
  hash_.add(bytes);
  const auto zeros = std::count(bytes.begin(), bytes.end(), std::byte{});
  evidence_.nonzero += Bytes(bytes.size() - static_cast<size_t>(zeros));
  progress_(evidence_.bytes += Bytes(bytes.size()));
}

Result<ScrubEvidence> ReadBack::finish(const Clock& wall_clock) {
  evidence_.digest = hexOf(hash_.finish());
  evidence_.finished = wall_clock.now();
  if (evidence_.nonzero.value() == 0) return evidence_;
  return fail(ErrorCode::kCorrupt, "%llu bytes of region %llu were not zero when read back",
              static_cast<unsigned long long>(evidence_.nonzero.value()),
              static_cast<unsigned long long>(evidence_.region.value()));
}

}  // namespace tidepool::fabric
