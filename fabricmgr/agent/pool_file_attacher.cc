// SPDX-License-Identifier: Apache-2.0
// Regions of an emulated pool: extents of a file, which programs map. A file cannot refuse anybody
// who has it open, so the agent looks into the pool's own record of grants when it has reason to.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "fabricmgr/agent/attacher.h"
#include "fabricmgr/device/grant_log.h"

namespace tidepool::agent {
namespace {

constexpr uint64_t kPiece = kMiB;  // erased and read back at once

Result<UniqueFd> openPool(const AccessPart& part) {
  UniqueFd file(open(part.address.c_str(), O_RDWR | O_CLOEXEC));
  if (file.valid()) return file;
  const ErrorCode code = errno == EACCES ? ErrorCode::kPermission : ErrorCode::kUnreachable;
  return failErrno(code, "cannot open the pool %.150s", part.address.c_str());
}

class PoolFileAttacher final : public Attacher {
 public:
  Result<agent_wire::Piece> attach(const RegionAccess&, const AccessPart& part,
                                   Files* files) override {
    auto file = openPool(part);
    if (!file) return tl::unexpected(file.error());
    agent_wire::Piece piece;
    piece.file = static_cast<uint32_t>(files->size());
    files->push_back(std::make_shared<const UniqueFd>(std::move(*file)));
    return piece;
  }

  Status erase(const RegionAccess& access, const AccessPart& part, const Lease& lease) override {
    const auto file = openPool(part);
    if (!file) return tl::unexpected(file.error());
    for (const fabric::Extent& extent : part.extents) {
      // It may have been taken from this host since: then these are somebody else's bytes.
      const auto ours = granted(access, part);
      if (!ours) return tl::unexpected(ours.error());
      if (!*ours) return fail(ErrorCode::kStaleEpoch, "the pool does not grant it any more");
      TP_TRY(lease.check());
      // A hole reads as zeros and needs no room; where there are none, zeros are written.
      const int hole =
          fallocate(file->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(extent.offset), static_cast<off_t>(extent.length.value()));
      if (hole != 0) TP_TRY(writeZeros(*file, extent, lease));
      TP_TRY(readBack(*file, extent));
    }
    return {};
  }

  Result<bool> granted(const RegionAccess& access, const AccessPart& part) override {
    const auto reports =
        fabric::GrantLog::read(part.address + ".grants", part.extents.front().device);
    if (!reports) return tl::unexpected(reports.error());
    return std::any_of(reports->begin(), reports->end(), [&](const fabric::GrantReport& report) {
      return report.grant.region.value() == access.region && report.grant.epoch == access.epoch &&
             report.grant.state == fabric::GrantState::kGranted;
    });
  }

 private:
  static Status writeZeros(const UniqueFd& file, const fabric::Extent& extent, const Lease& lease) {
    static const std::vector<std::byte> zeros(kPiece);
    for (uint64_t at = extent.offset; at < extent.end();) {
      TP_TRY(lease.check());
      const uint64_t length = std::min(kPiece, extent.end() - at);
      const ssize_t done = pwrite(file.get(), zeros.data(), length, static_cast<off_t>(at));
      if (done <= 0) return failErrno(ErrorCode::kIo, "cannot erase a region of the pool");
      at += static_cast<uint64_t>(done);
    }
    return {};
  }

  static Status readBack(const UniqueFd& file, const fabric::Extent& extent) {
    std::vector<std::byte> bytes(kPiece);
    for (uint64_t at = extent.offset; at < extent.end();) {
      const uint64_t length = std::min(kPiece, extent.end() - at);
      const ssize_t got = pread(file.get(), bytes.data(), length, static_cast<off_t>(at));
      if (got <= 0) return failErrno(ErrorCode::kIo, "cannot read the pool back");
      const auto end = bytes.begin() + got;
      if (std::any_of(bytes.begin(), end, [](std::byte one) { return one != std::byte{}; })) {
        return fail(ErrorCode::kCorrupt, "erased bytes of the pool were not zero when read back");
      }
      at += static_cast<uint64_t>(got);
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Attacher> makePoolFileAttacher() { return std::make_unique<PoolFileAttacher>(); }

}  // namespace tidepool::agent
