// SPDX-License-Identifier: Apache-2.0
// GrantTable: grants by region, and their pieces by place. Not thread-safe.
#include "fabricmgr/device/grant_table.h"

#include <algorithm>
#include <set>

#include "runtime/base/check.h"

namespace tidepool::fabric {
namespace {

unsigned long long print(RegionId id) { return id.value(); }

}  // namespace

template <typename Visit>
void GrantTable::overlapping(const Extent& extent, Visit visit) const {
  auto at = pieces_.upper_bound(extent.offset);
  if (at != pieces_.begin() && std::prev(at)->second.end > extent.offset) --at;
  for (; at != pieces_.end() && at->first < extent.end(); ++at) visit(at->second.region);
}

bool GrantTable::couldHold(Bytes capacity, std::span<const Extent> extents) {
  const uint64_t room = capacity.value();
  std::vector<Extent> sorted(extents.begin(), extents.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const Extent& left, const Extent& right) { return left.offset < right.offset; });
  uint64_t end = 0;
  for (const Extent& extent : sorted) {
    const uint64_t length = extent.length.value();
    if (length == 0 || length > room || extent.offset > room - length) return false;
    if (extent.offset < end) return false;
    end = extent.end();
  }
  return true;
}

Status GrantTable::check(const Grant& grant) const {
  if (const GrantReport* known = find(grant.region)) {
    if (grant.epoch < known->grant.epoch) {
      return fail(ErrorCode::kStaleEpoch, "region %llu is in epoch %llu, not %llu any more",
                  print(grant.region), static_cast<unsigned long long>(known->grant.epoch.value()),
                  static_cast<unsigned long long>(grant.epoch.value()));
    }
  }
  if (!couldHold(capacity_, grant.extents)) {
    return fail(ErrorCode::kInvalidArgument,
                "the extents of region %llu are not on the device, or overlap one another",
                print(grant.region));
  }
  for (const Extent& extent : grant.extents) {
    RegionId other;
    overlapping(extent, [&](RegionId holder) {
      if (holder != grant.region && find(holder)->grant.state != GrantState::kScrubbed) {
        other = holder;
      }
    });
    if (other != RegionId()) {
      return fail(ErrorCode::kConflict, "region %llu holds a part of what region %llu is to get",
                  print(other), print(grant.region));
    }
  }
  return {};
}

std::vector<RegionId> GrantTable::displacedBy(const Grant& grant) const {
  std::set<RegionId> gone;
  for (const Extent& extent : grant.extents) {
    overlapping(extent, [&](RegionId holder) {
      if (holder != grant.region) gone.insert(holder);
    });
  }
  return {gone.begin(), gone.end()};
}

void GrantTable::put(const GrantReport& report) {
  drop(report.grant.region);
  if (report.grant.extents.empty()) return;
  for (const RegionId region : displacedBy(report.grant)) drop(region);
  for (const Extent& extent : report.grant.extents) {
    const auto [at, added] =
        pieces_.emplace(extent.offset, Piece{extent.end(), report.grant.region});
    TP_CHECK(added);  // another's piece would go with this region
  }
  grants_.insert_or_assign(report.grant.region, report);
}

void GrantTable::drop(RegionId region) {
  const auto found = grants_.find(region);
  if (found == grants_.end()) return;
  for (const Extent& extent : found->second.grant.extents) pieces_.erase(extent.offset);
  grants_.erase(found);
}

const GrantReport* GrantTable::find(RegionId region) const {
  const auto found = grants_.find(region);
  return found == grants_.end() ? nullptr : &found->second;
}

std::vector<GrantReport> GrantTable::all() const {
  std::vector<GrantReport> reports;
  reports.reserve(grants_.size());
  for (const auto& [region, report] : grants_) reports.push_back(report);
  return reports;
}

}  // namespace tidepool::fabric
