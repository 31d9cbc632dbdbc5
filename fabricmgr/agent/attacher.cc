// SPDX-License-Identifier: Apache-2.0
// Attachers: leads each part of a region to its kind.
#include "fabricmgr/agent/attacher.h"

namespace tidepool::agent {

Attachers::Attachers() : pool_file_(makePoolFileAttacher()), memserver_(makeMemserverAttacher()) {}

Attacher& Attachers::of(const AccessPart& part) const {
  return part.memory_class == fabric::MemoryClass::kRemote ? *memserver_ : *pool_file_;
}

Result<Attached> Attachers::attach(const RegionAccess& access) const {
  Attached attached;
  for (const AccessPart& part : access.parts) {
    TP_TRY(of(part).attach(access, part, &attached));
    attached.direct = attached.direct && part.memory_class == fabric::MemoryClass::kCxl;
  }
  if (attached.pieces.size() > agent_wire::kMaxPieces ||
      attached.files.size() > agent_wire::kMaxFiles) {
    return fail(ErrorCode::kUnsupported,
                "region %llu is in %zu pieces: more than programs can be given; assign it with "
                "--contiguous or --max-devices",
                static_cast<unsigned long long>(access.region), attached.pieces.size());
  }
  return attached;
}

Status Attachers::erase(const RegionAccess& access) const {
  for (const AccessPart& part : access.parts) TP_TRY(of(part).erase(access, part));
  return {};
}

Result<bool> Attachers::granted(const RegionAccess& access) const {
  for (const AccessPart& part : access.parts) {
    const auto granted = of(part).granted(access, part);
    if (!granted || !*granted) return granted;
  }
  return true;
}

}  // namespace tidepool::agent
