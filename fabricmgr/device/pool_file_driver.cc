// SPDX-License-Identifier: Apache-2.0
// PoolFileDriver: the grants table, made durable by its log before anything is answered; erasing by
// writing zeros and reading them back.
#include "fabricmgr/device/pool_file_driver.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "fabricmgr/device/grant_log.h"
#include "fabricmgr/device/grant_table.h"
#include "fabricmgr/model/fault_point.h"
#include "fabricmgr/model/hash.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::fabric {
namespace {

/// Bytes erased or read at once: large enough for the disk, small enough for progress.
constexpr uint64_t kPiece = kMiB;

class PoolFileDriver final : public DeviceDriver {
 public:
  PoolFileDriver(std::string path, UniqueFd file, Bytes capacity, std::unique_ptr<GrantLog> log,
                 const Clock& wall_clock)
      : path_(std::move(path)),
        file_(std::move(file)),
        capacity_(capacity),
        log_(std::move(log)),
        wall_clock_(wall_clock),
        table_(capacity) {}

  void restore(const std::vector<GrantReport>& grants) {
    MutexLock lock(mutex_);
    for (const GrantReport& report : grants) table_.put(report);
  }

  Result<Bytes> capacity() override { return capacity_; }
  Status attach(const Grant& grant) override { return record(grant, GrantState::kGranted); }
  Status revoke(const Grant& grant) override { return record(grant, GrantState::kRevoked); }
  Result<ScrubEvidence> scrub(const Grant& grant, const Progress& progress) override;
  Result<ScrubEvidence> verify(const Grant& grant, const ScrubEvidence& scrubbed,
                               const Progress& progress) override;
  Status forget(RegionId region) override;
  Result<std::vector<GrantReport>> inspect() override {
    MutexLock lock(mutex_);
    return table_.all();
  }
  Result<Pass> pass(const Grant&) override { return Pass{path_, ""}; }

 private:
  Status record(Grant grant, GrantState state);
  /// Into the table and the log; what the log is to be awaited for.
  uint64_t note(const GrantReport& report) TP_REQUIRES(mutex_);
  Status mayErase(const Grant& grant) TP_EXCLUDES(mutex_);
  Status erase(const Extent& extent, Bytes* done, const Progress& progress);
  Status readBack(const Extent& extent, Sha256* hash, ScrubEvidence* evidence,
                  const Progress& progress);

  const std::string path_;
  const UniqueFd file_;
  const Bytes capacity_;
  const std::unique_ptr<GrantLog> log_;
  const Clock& wall_clock_;
  Mutex mutex_;
  GrantTable table_ TP_GUARDED_BY(mutex_);
};

Status PoolFileDriver::record(Grant grant, GrantState state) {
  grant.state = state;
  uint64_t ticket = 0;
  {
    MutexLock lock(mutex_);
    TP_TRY(table_.check(grant));
    ticket = note({grant, {}});
  }
  return log_->await(ticket);
}

uint64_t PoolFileDriver::note(const GrantReport& report) {
  table_.put(report);
  const uint64_t ticket = log_->enqueue(GrantLog::lineOf(report));
  if (log_->isLong()) log_->renew(table_.all());
  return ticket;
}

Status PoolFileDriver::mayErase(const Grant& grant) {
  MutexLock lock(mutex_);
  const GrantReport* known = table_.find(grant.region);
  if (known == nullptr || known->grant.extents != grant.extents) {
    return fail(ErrorCode::kConflict, "the pool does not hold these extents for region %llu",
                static_cast<unsigned long long>(grant.region.value()));
  }
  if (known->grant.state == GrantState::kGranted) {
    return fail(ErrorCode::kRefused, "region %llu is granted: revoke it first",
                static_cast<unsigned long long>(grant.region.value()));
  }
  return {};
}

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
  TP_TRY(mayErase(grant));
  ScrubEvidence evidence;
  evidence.region = grant.region;
  evidence.device = grant.extents.front().device;
  evidence.epoch = grant.epoch;
  evidence.started = wall_clock_.now();
  Bytes done;
  for (const Extent& extent : grant.extents) {
    TP_TRY(erase(extent, &done, progress));
    faultPoint(FaultPoint::kPoolExtentErased);
  }
  if (fdatasync(file_.get()) != 0) return failErrno(ErrorCode::kIo, "cannot sync the pool");
  evidence.passes = 1;
  return evidence;
}

Status PoolFileDriver::readBack(const Extent& extent, Sha256* hash, ScrubEvidence* evidence,
                                const Progress& progress) {
  std::vector<std::byte> piece(std::min(kPiece, extent.length.value()));
  for (uint64_t at = extent.offset; at < extent.end();) {
    const uint64_t wanted = std::min<uint64_t>(piece.size(), extent.end() - at);
    const ssize_t got = pread(file_.get(), piece.data(), wanted, static_cast<off_t>(at));
    if (got <= 0) return failErrno(ErrorCode::kIo, "cannot read the pool back");
    const auto bytes = std::span(piece).first(static_cast<size_t>(got));
    hash->add(bytes);
    const auto zeros = std::count(bytes.begin(), bytes.end(), std::byte{});
    evidence->nonzero += Bytes(bytes.size() - static_cast<size_t>(zeros));
    evidence->bytes += Bytes(bytes.size());
    at += static_cast<uint64_t>(got);
    progress(evidence->bytes);
  }
  return {};
}

Result<ScrubEvidence> PoolFileDriver::verify(const Grant& grant, const ScrubEvidence& scrubbed,
                                             const Progress& progress) {
  TP_TRY(mayErase(grant));
  ScrubEvidence evidence = scrubbed;
  evidence.bytes = Bytes();
  evidence.nonzero = Bytes();
  Sha256 hash;
  for (const Extent& extent : grant.extents) {
    TP_TRY(readBack(extent, &hash, &evidence, progress));
  }
  evidence.digest = hexOf(hash.finish());
  evidence.finished = wall_clock_.now();
  if (evidence.nonzero.value() > 0) {
    return fail(ErrorCode::kCorrupt, "%llu bytes of region %llu were not zero when read back",
                static_cast<unsigned long long>(evidence.nonzero.value()),
                static_cast<unsigned long long>(grant.region.value()));
  }
  GrantReport report{grant, evidence};
  report.grant.state = GrantState::kScrubbed;
  uint64_t ticket = 0;
  {
    MutexLock lock(mutex_);
    ticket = note(report);
  }
  TP_TRY(log_->await(ticket));
  // Zeros need no room; merely a hint, which some file systems do not take.
  for (const Extent& extent : grant.extents) {
    (void)fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(extent.offset), static_cast<off_t>(extent.length.value()));
  }
  return evidence;
}

Status PoolFileDriver::forget(RegionId region) {
  MutexLock lock(mutex_);
  const GrantReport* known = table_.find(region);
  if (known == nullptr || known->grant.state != GrantState::kScrubbed) return {};
  table_.drop(region);
  log_->enqueue(GrantLog::forgetLine(region));  // goes to the disk with the next grant
  return {};
}

}  // namespace

Result<std::shared_ptr<DeviceDriver>> openPoolFile(const Device& device, const Clock& wall_clock) {
  const char* path = device.address.c_str();
  UniqueFd file(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  struct stat about;
  if (!file.valid() || fstat(file.get(), &about) != 0) {
    return failErrno(ErrorCode::kUnreachable, "cannot open the pool %s", path);
  }
  auto size = static_cast<uint64_t>(about.st_size);
  if (S_ISREG(about.st_mode) && size == 0 && device.capacity.value() > 0) {
    if (ftruncate(file.get(), static_cast<off_t>(device.capacity.value())) != 0) {
      return failErrno(ErrorCode::kUnreachable, "cannot make the pool %s so large", path);
    }
    size = device.capacity.value();
  }
  if (size == 0 || size < device.capacity.value()) {
    return fail(ErrorCode::kInvalidArgument, "the pool %s has %llu bytes, not %llu", path,
                static_cast<unsigned long long>(size),
                static_cast<unsigned long long>(device.capacity.value()));
  }
  std::vector<GrantReport> grants;
  auto log = GrantLog::open(device.address + ".grants", device.id, &grants);
  if (!log) return tl::unexpected(log.error());
  auto driver = std::make_shared<PoolFileDriver>(device.address, std::move(file), Bytes(size),
                                                 std::move(*log), wall_clock);
  driver->restore(grants);
  return std::shared_ptr<DeviceDriver>(std::move(driver));
}

}  // namespace tidepool::fabric
