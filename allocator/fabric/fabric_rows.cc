// SPDX-License-Identifier: Apache-2.0
// FabricRows: the window, and moving. What is moved is copied first and then put in the place of
// the old, in one step; the old frames keep their bytes until none of their run is used any more.
#include "allocator/fabric/fabric_rows.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "allocator/fabric/fabric_pool.h"
#include "runtime/base/check.h"
#include "runtime/base/format.h"
#include "runtime/os/memory.h"

namespace tidepool {
namespace {

// Moved under one hold of the table: about a millisecond's worth of copying.
constexpr uint64_t kMoveBytes = kGranuleSize;

uint64_t addressOf(const std::byte* memory) { return reinterpret_cast<uintptr_t>(memory); }

FrameRun granuleOf(const RowRun& run, uint64_t at) {
  return {run.frames.first + at * kPagesPerGranule, PageCount(kPagesPerGranule)};
}

}  // namespace

RowRun::~RowRun() {
  if (pool != nullptr) pool->release(*this);
}

Result<std::unique_ptr<FabricRows>> FabricRows::create(FabricPool& pool, TierKind kind,
                                                       Bytes stride, uint64_t rows,
                                                       std::vector<std::unique_ptr<RowRun>> runs) {
  std::unique_ptr<FabricRows> made(new FabricRows(pool, kind, stride, rows));
  const Bytes unit = made->unit();
  const uint64_t units = kind == TierKind::kDirect
                             ? roundUp(rows * stride.value(), kGranuleSize) / kGranuleSize
                             : rows;
  uint64_t first = 0;
  for (const auto& run : runs) {
    const uint64_t end = std::min(units, first + run->size / unit);
    made->parts_.push_back({first, end, 0, run.get()});
    first = end;
  }
  TP_CHECK_OP(first, ==, units);
  made->runs_ = std::move(runs);
  if (kind == TierKind::kDirect) TP_TRY(made->openWindow());
  return made;
}

RegionHold& FabricRows::hold() const { return pool_.hold(); }

FabricRows::~FabricRows() {
  pool_.remove(*this);
  // What is mapped there goes before the frames are anybody else's.
  hold().remove(*this);
  window_ = Mapping();
}

Status FabricRows::openWindow() {
  const Bytes size(granules() * kGranuleSize);
  auto window = Mapping::reserved(size, Bytes(kGranuleSize));
  if (!window) return tl::unexpected(window.error());
  window_ = std::move(*window);
  for (const RowPart& part : parts_) {
    for (uint64_t granule = part.first; granule < part.end; ++granule) {
      TP_TRY(mapUnit(granule, *part.run, granule - part.first + part.at));
    }
  }
  hold().add(*this);
  return {};
}

void FabricRows::mapAgain() {
  for (const RowPart& part : parts_) {
    for (uint64_t granule = part.first; granule < part.end && part.run->tier != nullptr;
         ++granule) {
      TP_CHECK(mapUnit(granule, *part.run, granule - part.first + part.at).has_value());
    }
  }
}

Status FabricRows::mapUnit(uint64_t granule, const RowRun& run, uint64_t at) {
  std::byte* const address = window_.data() + granule * kGranuleSize;
  TP_TRY(static_cast<DirectTier*>(run.tier)->mapFrames(granuleOf(run, at), address));
  // A child of fork() has no right to it.
  (void)madvise(address, kGranuleSize, MADV_DONTFORK);
  return {};
}

void FabricRows::preferHuge(uint64_t granule) {
  const RowPart& part = partOf(granule);
  if (part.run->tier == nullptr) return;
  static_cast<DirectTier*>(part.run->tier)
      ->preferHuge(granuleOf(*part.run, granule - part.first + part.at));
}

Status FabricRows::verdict() const {
  if (!isLost()) return {};
  return fail(ErrorCode::kLost, "%s", lost_text_);
}

void FabricRows::setKeeper(RowsKeeper* keeper) {
  MutexLock lock(keeping_);
  keeper_ = keeper;
}

void FabricRows::opened(StripedChannel& channel) {
  MutexLock lock(moving_);
  channels_.push_back(&channel);
}

void FabricRows::closed(StripedChannel& channel) {
  MutexLock lock(moving_);
  TP_CHECK(std::erase(channels_, &channel) == 1);
}

const RowPart& FabricRows::partOf(uint64_t unit) const {
  if (parts_.size() == 1) return parts_.front();
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), unit,
                       [](uint64_t wanted, const RowPart& part) { return wanted < part.first; });
  return *(after - 1);
}

const RowPart* FabricRows::firstIn(const FabricRegion& region) const {
  for (const RowPart& part : parts_) {
    if (part.run->region == &region) return &part;
  }
  return nullptr;
}

Bytes FabricRows::bytesIn(const FabricRegion& region) const {
  Bytes bytes;
  for (const RowPart& part : parts_) {
    if (part.run->region == &region) bytes += unit() * (part.end - part.first);
  }
  return bytes;
}

bool FabricRows::loseIn(const FabricRegion& region, const char* why) {
  const bool any = std::any_of(parts_.begin(), parts_.end(), [&region](const RowPart& part) {
    return part.run->region == &region && FabricRegion::lost(*part.run->tier, part.run->frames);
  });
  if (!any || isLost()) return false;
  char text[sizeof lost_text_];
  formatText(text, sizeof text,
             "rows were in region %llu of the fabric, which is gone (%.90s): make the table anew "
             "from its last checkpoint",
             static_cast<unsigned long long>(region.id), why);
  giveUp(text);
  return true;
}

void FabricRows::giveUp(const char* why) {
  if (isLost()) return;
  formatText(lost_text_, sizeof lost_text_, "%s", why);
  lost_.store(true, std::memory_order_release);  // pairs with isLost()
}

/// Room for some of the part, at least for a unit of it. False if there is none.
bool FabricRows::makeTarget(const RowPart& part) {
  const bool left = target_ != nullptr && target_->region != nullptr && !target_->region->serving();
  if (target_ != nullptr && !left && target_used_ < target_->size / unit()) return true;
  target_ = nullptr;
  auto run = pool_.placeElsewhere(unit() * (part.end - part.first), unit(), kind_);
  if (!run) return false;
  target_used_ = 0;
  target_ = run->get();
  runs_.push_back(std::move(*run));
  return true;
}

FabricRows::Progress FabricRows::moveSome(const FabricRegion& region) {
  MutexLock keeping(keeping_);
  const RowPart* const part = firstIn(region);
  if (part == nullptr || isLost()) {
    dropTarget();
    return Progress::kDone;
  }
  if (keeper_ == nullptr) return Progress::kBusy;
  if (!makeTarget(*part)) return Progress::kNoRoom;
  if (!keeper_->hold()) return Progress::kBusy;
  Progress progress = Progress::kMoved;
  {
    MutexLock lock(moving_);
    const uint64_t first = part->first;
    if (channels_.size() > 1) {
      progress = Progress::kRead;
    } else {
      const uint64_t count =
          std::min({part->end - first, std::max<uint64_t>(kMoveBytes / unit().value(), 1),
                    target_->size / unit() - target_used_});
      const Status moved = kind_ == TierKind::kDirect ? moveGranule(first) : moveRows(first, count);
      if (!moved) progress = Progress::kNoRoom;
    }
  }
  if (progress == Progress::kMoved) dropRuns();
  keeper_->letGo();
  return progress;
}

/// Errors: those of mapping, with nothing changed.
Status FabricRows::moveGranule(uint64_t granule) {
  // This thread must not be one that waits for what it is to bring back.
  MutexLock lock(hold().mutex());
  if (hold().suspended()) return fail(ErrorCode::kConflict, "regions are out of reach");
  std::byte* const here = window_.data() + granule * kGranuleSize;
  std::byte* const there = target_->memory + target_used_ * kGranuleSize;
  if (target_->tier != nullptr) {
    static_cast<DirectTier*>(target_->tier)->preferHuge(granuleOf(*target_, target_used_));
  }
  memcpy(there, here, kGranuleSize);
  if (target_->tier != nullptr) {
    TP_TRY(mapUnit(granule, *target_, target_used_));
  } else {
    TP_TRY(os::moveMapping(addressOf(there), addressOf(here), Bytes(kGranuleSize)));
  }
  setPart(granule, 1);
  return {};
}

/// Errors: those of reading and writing, with nothing changed.
Status FabricRows::moveRows(uint64_t first, uint64_t count) {
  TP_CHECK_OP(channels_.size(), ==, 1u);
  StripedChannel& channel = *channels_.front();
  buffer_.resize((stride_ * count).value());
  TP_TRY(channel.readNow(first, count, buffer_.data()));
  const std::vector<RowPart> before = parts_;
  const uint64_t used = target_used_;
  setPart(first, count);
  const Status written = channel.writeNow(first, count, buffer_.data());
  if (written) return {};
  parts_ = before;
  target_used_ = used;
  channel.dropUnused();
  return written;
}

/// Units are in the target from now on, which has them.
void FabricRows::setPart(uint64_t first, uint64_t count) {
  const uint64_t end = first + count;
  std::vector<RowPart> fresh;
  const auto add = [&fresh](const RowPart& part) {
    if (part.first == part.end) return;
    RowPart* const last = fresh.empty() ? nullptr : &fresh.back();
    if (last != nullptr && last->run == part.run &&
        last->at + (last->end - last->first) == part.at) {
      last->end = part.end;
    } else {
      fresh.push_back(part);
    }
  };
  for (const RowPart& part : parts_) {
    add({part.first, std::max(part.first, std::min(part.end, first)), part.at, part.run});
    if (part.first <= first && first < part.end) add({first, end, target_used_, target_});
    const uint64_t rest = std::min(part.end, std::max(part.first, end));
    add({rest, part.end, part.at + (rest - part.first), part.run});
  }
  // As before, every unit is in one place.
  TP_CHECK(fresh.front().first == parts_.front().first && fresh.back().end == parts_.back().end);
  for (size_t i = 1; i < fresh.size(); ++i) TP_CHECK_OP(fresh[i - 1].end, ==, fresh[i].first);
  target_used_ += count;
  TP_CHECK_OP(target_used_, <=, target_->size / unit());
  parts_ = std::move(fresh);
}

/// Room that came to nothing goes back.
void FabricRows::dropTarget() {
  if (target_ == nullptr || target_used_ > 0) return;
  std::erase_if(runs_, [this](const auto& run) { return run.get() == target_; });
  target_ = nullptr;
}

/// Gives back runs that have none of the rows any more.
void FabricRows::dropRuns() {
  {
    MutexLock lock(moving_);  // a checkpoint may open a channel of its own just now
    if (!channels_.empty()) channels_.front()->dropUnused();
  }
  std::erase_if(runs_, [this](const auto& run) {
    return run.get() != target_ &&
           std::none_of(parts_.begin(), parts_.end(),
                        [&run](const RowPart& part) { return part.run == run.get(); });
  });
}

}  // namespace tidepool
