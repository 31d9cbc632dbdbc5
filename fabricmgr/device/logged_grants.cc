// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/device/logged_grants.h"

namespace tidepool::fabric {

Result<std::unique_ptr<LoggedGrants>> LoggedGrants::open(const std::string& path,
                                                         const Device& device,
                                                         Leadership& leadership, Bytes capacity,
                                                         const char* holder) {
  std::vector<GrantReport> grants;
  auto log = GrantLog::open(path, device.id, leadership, &grants);
  if (!log) return tl::unexpected(log.error());
  std::unique_ptr<LoggedGrants> opened(new LoggedGrants(capacity, std::move(*log), holder));
  MutexLock lock(opened->mutex_);
  for (const GrantReport& report : grants) opened->table_.put(report);
  return opened;
}

Status LoggedGrants::check(const Grant& grant) {
  MutexLock lock(mutex_);
  return table_.check(grant);
}

uint64_t LoggedGrants::note(const GrantReport& report) {
  table_.put(report);
  const uint64_t ticket = log_->enqueue(GrantLog::lineOf(report));
  if (log_->isLong()) log_->renew(table_.all());
  return ticket;
}

Status LoggedGrants::record(const GrantReport& report) {
  uint64_t ticket = 0;
  {
    MutexLock lock(mutex_);
    ticket = note(report);
  }
  return log_->await(ticket);
}

Status LoggedGrants::checkAndRecord(const GrantReport& report) {
  uint64_t ticket = 0;
  {
    MutexLock lock(mutex_);
    TP_TRY(table_.check(report.grant));
    ticket = note(report);
  }
  return log_->await(ticket);
}

Status LoggedGrants::mayErase(const Grant& grant) {
  MutexLock lock(mutex_);
  const GrantReport* known = table_.find(grant.region);
  if (known == nullptr || known->grant.extents != grant.extents) {
    return fail(ErrorCode::kConflict, "%s does not hold these extents for region %llu",
                holder_.c_str(), static_cast<unsigned long long>(grant.region.value()));
  }
  if (known->grant.state != GrantState::kGranted) return {};
  return fail(ErrorCode::kRefused, "region %llu is granted: revoke it first",
              static_cast<unsigned long long>(grant.region.value()));
}

void LoggedGrants::forget(RegionId region) {
  MutexLock lock(mutex_);
  const GrantReport* known = table_.find(region);
  if (known == nullptr || known->grant.state != GrantState::kScrubbed) return;
  table_.drop(region);
  log_->enqueue(GrantLog::forgetLine(region));
}

Status LoggedGrants::release() {
  uint64_t ticket = 0;
  {
    MutexLock lock(mutex_);
    for (const GrantReport& report : table_.all()) {
      const RegionId region = report.grant.region;
      if (report.grant.state != GrantState::kScrubbed) {
        return fail(ErrorCode::kRefused, "%s holds bytes for region %llu", holder_.c_str(),
                    static_cast<unsigned long long>(region.value()));
      }
      table_.drop(region);
    }
    ticket = log_->disown();
  }
  return log_->await(ticket);
}

std::vector<GrantReport> LoggedGrants::all() {
  MutexLock lock(mutex_);
  return table_.all();
}

}  // namespace tidepool::fabric
