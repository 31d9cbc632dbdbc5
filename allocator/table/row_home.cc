// SPDX-License-Identifier: Apache-2.0
// RowHome: one run of frames a table.
#include "allocator/table/row_home.h"

#include "runtime/base/check.h"
#include "runtime/tier/remote_tier.h"

namespace tidepool {
namespace {

Bytes sizeOf(const RowFormat& format, RowNumber rows) { return Bytes(rows * format.stride()); }

tl::unexpected<Error> tooSmall(const Tier& tier, Bytes wanted) {
  return fail(
      ErrorCode::kNoSpace,
      "%s has no room for a table of %llu bytes in one piece (%llu of its %llu bytes are in "
      "use); give it more, or name another tier",
      tier.name(), static_cast<unsigned long long>(wanted.value()),
      static_cast<unsigned long long>(tier.used().value()),
      static_cast<unsigned long long>(tier.capacity().value()));
}

}  // namespace

RowHome::~RowHome() {
  link_.reset();
  if (tier_ != nullptr) tier_->release(frames_);
}

Result<std::unique_ptr<RowHome>> RowHome::inLocalMemory(const RowFormat& format, RowNumber rows) {
  const Bytes size = sizeOf(format, rows);
  auto memory = HugeMemory::allocate(size);
  if (!memory) return tl::unexpected(memory.error());
  std::unique_ptr<RowHome> home(new RowHome(TierKind::kLocal, size));
  home->memory_ = memory->data();
  home->local_ = std::move(*memory);
  return home;
}

Result<std::unique_ptr<RowHome>> RowHome::inDirectTier(DirectTier& tier, const RowFormat& format,
                                                       RowNumber rows) {
  const Bytes size = sizeOf(format, rows);
  const PageCount wanted = toPages(Bytes(roundUp(size.value(), kGranuleSize)));
  auto run = tier.allocate(wanted);
  if (!run) return tooSmall(tier, size);
  std::unique_ptr<RowHome> home(new RowHome(TierKind::kDirect, size));
  home->tier_ = &tier;
  home->frames_ = *run;
  if (run->count != wanted) return tooSmall(tier, size);
  home->memory_ = tier.frameMemory(run->first);
  return home;
}

Result<std::unique_ptr<RowHome>> RowHome::inRemoteTier(RemoteTier& tier, const RowFormat& format,
                                                       RowNumber rows) {
  const Bytes size = sizeOf(format, rows);
  auto run = tier.allocateArea(size);
  if (!run) return tl::unexpected(run.error());
  std::unique_ptr<RowHome> home(new RowHome(TierKind::kFetch, size));
  home->tier_ = &tier;
  home->frames_ = *run;
  home->area_ = {*run, Bytes(), Bytes(format.stride()), rows};
  auto link = home->openLink();
  if (!link) return tl::unexpected(link.error());
  home->link_ = std::move(*link);
  return home;
}

Result<std::unique_ptr<RowLink>> RowHome::openLink() const {
  TP_CHECK(kind_ == TierKind::kFetch);
  auto channel = static_cast<RemoteTier*>(tier_)->openRows(area_);
  if (!channel) return tl::unexpected(channel.error());
  auto link = std::make_unique<RowLink>(std::move(*channel), area_.row);
  TP_TRY(link->setMemory(RowLink::kMostMemory));
  return link;
}

}  // namespace tidepool
