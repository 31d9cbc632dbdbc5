// SPDX-License-Identifier: Apache-2.0
// PoolFileDriver: the grants table, made durable by its log before anything is answered; erasing by
// writing zeros and reading them back.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "fabricmgr/device/drivers.h"
#include "fabricmgr/device/erasure.h"
#include "fabricmgr/device/logged_grants.h"
#include "fabricmgr/model/fault_point.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::fabric {
namespace {

/// Bytes erased or read at once: large enough for the disk, small enough for progress.
constexpr uint64_t kPiece = kMiB;

class PoolFileDriver final : public DeviceDriver {
 public:
  PoolFileDriver(std::string path, UniqueFd file, Bytes capacity,
                 std::unique_ptr<LoggedGrants> grants, const Clock& wall_clock)
      : path_(std::move(path)),
        file_(std::move(file)),
        capacity_(capacity),
        grants_(std::move(grants)),
        wall_clock_(wall_clock) {}

  Result<Bytes> capacity() override { return capacity_; }
  Status attach(const Grant& grant) override { return record(grant, GrantState::kGranted); }
  Status revoke(const Grant& grant) override { return record(grant, GrantState::kRevoked); }
  Result<ScrubEvidence> scrub(const Grant& grant, const Progress& progress) override;
  Result<ScrubEvidence> verify(const Grant& grant, const ScrubEvidence& scrubbed,
                               const Progress& progress) override;
  Status forget(RegionId region) override {
    grants_->forget(region);
    return {};
  }
  Result<std::vector<GrantReport>> inspect() override { return grants_->all(); }
  Result<Pass> pass(const Grant&) override { return Pass{path_, ""}; }
  Status release() override { return grants_->release(); }

 private:
  Status record(Grant grant, GrantState state) {
    grant.state = state;
    return grants_->checkAndRecord({grant, {}});
  }
  Status erase(const Extent& extent, Bytes* done, const Progress& progress);
  Status readBack(const Extent& extent, ReadBack* read);

  const std::string path_;
  const UniqueFd file_;
  const Bytes capacity_;
  const std::unique_ptr<LoggedGrants> grants_;
  const Clock& wall_clock_;
};

Status PoolFileDriver::erase(const Extent& extent, Bytes* done, const Progress& progress) {
  static const std::vector<std::byte> zeros(kPiece);
  for (uint64_t at = extent.offset; at < extent.end();) {
    const uint64_t piece = std::min(kPiece, extent.end() - at);
    const ssize_t written = pwrite(file_.get(), zeros.data(), piece, static_cast<off_t>(at));
    if (written <= 0) return failErrno(ErrorCode::kIo, "cannot erase the pool");
    at += static_cast<uint64_t>(written);
    *done += Bytes(static_cast<uint64_t>(written));
    progress(*done);
  }
  return {};
}

Result<ScrubEvidence> PoolFileDriver::scrub(const Grant& grant, const Progress& progress) {
  TP_TRY(grants_->mayErase(grant));
  const ScrubEvidence evidence = beginErasure(grant, wall_clock_);
  Bytes done;
  for (const Extent& extent : grant.extents) {
    TP_TRY(erase(extent, &done, progress));
    faultPoint(FaultPoint::kPoolExtentErased);
  }
  if (fdatasync(file_.get()) != 0) return failErrno(ErrorCode::kIo, "cannot sync the pool");
  return evidence;
}

Status PoolFileDriver::readBack(const Extent& extent, ReadBack* read) {
  std::vector<std::byte> piece(std::min(kPiece, extent.length.value()));
  for (uint64_t at = extent.offset; at < extent.end();) {
    const uint64_t wanted = std::min<uint64_t>(piece.size(), extent.end() - at);
    const ssize_t got = pread(file_.get(), piece.data(), wanted, static_cast<off_t>(at));
    if (got <= 0) return failErrno(ErrorCode::kIo, "cannot read the pool back");
    read->add(std::span(piece).first(static_cast<size_t>(got)));
    at += static_cast<uint64_t>(got);
  }
  return {};
}

Result<ScrubEvidence> PoolFileDriver::verify(const Grant& grant, const ScrubEvidence& scrubbed,
                                             const Progress& progress) {
  TP_TRY(grants_->mayErase(grant));
  ReadBack read(scrubbed, progress);
  for (const Extent& extent : grant.extents) TP_TRY(readBack(extent, &read));
  const auto evidence = read.finish(wall_clock_);
  if (!evidence) return evidence;
  GrantReport report{grant, *evidence};
  report.grant.state = GrantState::kScrubbed;
  TP_TRY(grants_->record(report));
  // Zeros need no room; merely a hint, which some file systems do not take.
  for (const Extent& extent : grant.extents) {
    (void)fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(extent.offset), static_cast<off_t>(extent.length.value()));
  }
  return evidence;
}

}  // namespace

Result<std::shared_ptr<DeviceDriver>> openPoolFile(const Device& device, Leadership& leadership,
                                                   const Clock& wall_clock) {
  const char* path = device.address.c_str();
  // A file is made only where it is said how large it is to be: a wrong path is no new pool.
  const int make = device.capacity.value() > 0 ? O_CREAT : 0;
  UniqueFd file(open(path, O_RDWR | make | O_CLOEXEC, 0600));
  struct stat about;
  if (!file.valid() || fstat(file.get(), &about) != 0) {
    return failErrno(ErrorCode::kUnreachable, "cannot open the pool %s", path);
  }
  // The lock is the file's, whatever it is called: a link to it is no second device. The lock of
  // the grants (below) is that of one name.
  const std::string log = device.address + ".grants";
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    TP_TRY(GrantLog::mayBeOurs(log, leadership));
    return fail(ErrorCode::kConflict,
                "the pool %s is in use as a device already: by this manager under another name, or "
                "by another one",
                path);
  }
  auto size = static_cast<uint64_t>(about.st_size);
  if (S_ISREG(about.st_mode) && size == 0 && device.capacity.value() > 0) {
    if (ftruncate(file.get(), static_cast<off_t>(device.capacity.value())) != 0) {
      return failErrno(ErrorCode::kUnreachable, "cannot make the pool %s so large", path);
    }
    size = device.capacity.value();
  }
  if (size == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "the pool %s is empty: make it as large as it is to be, or give a capacity", path);
  }
  if (size < device.capacity.value()) {
    return fail(ErrorCode::kInvalidArgument, "the pool %s has %llu bytes, not %llu", path,
                static_cast<unsigned long long>(size),
                static_cast<unsigned long long>(device.capacity.value()));
  }
  auto grants = LoggedGrants::open(log, device, leadership, Bytes(size), "the pool");
  if (!grants) return tl::unexpected(grants.error());
  return std::make_shared<PoolFileDriver>(device.address, std::move(file), Bytes(size),
                                          std::move(*grants), wall_clock);
}

}  // namespace tidepool::fabric
