// SPDX-License-Identifier: Apache-2.0
// See file_tier.h.
#include "runtime/tier/file_tier.h"

#include <algorithm>
#include <cerrno>

#include "runtime/base/format.h"
#include "runtime/base/log.h"

namespace tidepool {
namespace {

// Space beyond what is used that the disk is not given back, for pages come again soon.
constexpr uint64_t kSpareSegments = 32, kSpareShare = 4;
// Of one look for a segment to give back.
constexpr uint64_t kSegmentsALook = 4096;

}  // namespace

Result<std::unique_ptr<Tier>> FileTier::open(const FarSpec& far, const Patience&) {
  char name[sizeof name_];
  formatText(name, sizeof name, "file:%s", far.target);
  const auto folder = os::folderFor(far.target);
  if (!folder) return fail(folder.error().code(), "%s: %s", name, folder.error().text());
  const PageCount pages = toPages(far.size);
  const auto want = far.direct ? PageFile::Want::kDirect : PageFile::Want::kAsCan;
  auto file = PageFile::open(*folder, pages, want);
  if (!file) return fail(file.error().code(), "%s: %s", name, file.error().text());
  auto frames = FrameTable::create(pages);
  if (!frames) return tl::unexpected(frames.error());
  std::unique_ptr<FileTier> tier(new FileTier(std::move(*file), std::move(*frames)));
  formatText(tier->name_, sizeof tier->name_, "%s", name);
  tier->tryRing();
  tier->sayWhatIsSlow();
  return tier;
}

void FileTier::tryRing() {
  if (!file_->direct()) {
    ring_ = fail(ErrorCode::kUnsupported, "it is of use past the page cache alone");
    return;
  }
  auto ring = os::Uring::create();
  if (!ring) ring_ = tl::unexpected(ring.error());
}

void FileTier::sayWhatIsSlow() const {
  static constinit std::atomic<bool> said{false};
  if (ring_ || said.exchange(true, std::memory_order_relaxed)) return;
  if (!file_->direct()) {
    logLine(
        "%s goes through the page cache, whose memory is not counted in --dram: its file "
        "system has no O_DIRECT, or is memory",
        name_);
  } else {
    logLine("%s is read a page at a time, which is slower: %s", name_, ring_.error().text());
  }
}

Result<FrameRun> FileTier::allocate(PageCount wanted) {
  const auto run = frames_->allocate(wanted);
  if (!run) return run;
  const PageCount reserved = file_->reserve(*run);
  if (reserved == run->count) return run;
  const int why = errno;
  frames_->release({run->first + reserved.value(), run->count - reserved});
  if (!said_full_.exchange(true, std::memory_order_relaxed)) {
    logLine("%s takes no more pages than it has room for now: %s", name_, errnoText(why));
  }
  if (reserved == PageCount()) return fail(ErrorCode::kNoSpace, "%s: the disk is full", name_);
  return FrameRun{run->first, reserved};
}

Status FileTier::read(FrameRun run, std::byte* memory) {
  TP_TRY(file_->read(run, memory));
  traffic_.reads_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  return {};
}

Status FileTier::write(FrameRun run, const std::byte* memory) {
  TP_TRY(file_->write(run, memory));
  traffic_.writes_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  return {};
}

Result<std::unique_ptr<FetchChannel>> FileTier::openChannel() {
  std::unique_ptr<os::Uring> ring;
  if (ring_ && gate_.enter()) {
    // Without one the pages can be had all the same.
    if (auto made = os::Uring::create()) ring = std::move(*made);
    gate_.leave();
  }
  return FileChannel::create(*file_, gate_, traffic_, std::move(ring));
}

void FileTier::tend() {
  const uint64_t used =
      (frames_->used().value() + PageFile::kSegment.value() - 1) / PageFile::kSegment.value();
  if (file_->reservedSegments() <= used + used / kSpareShare + kSpareSegments) return;
  // One: it takes a millisecond or two where the disk is told (discard), and evictions wait for it.
  for (uint64_t looked = 0; looked < kSegmentsALook; ++looked) {
    const uint64_t index = next_segment_++ % file_->segments();
    const FrameRun segment = file_->segment(index);
    // Held like pages while it is given back: nobody else can be given it.
    if (!file_->isReserved(index) || !frames_->takeFree(segment)) continue;
    file_->giveBack(segment);
    return frames_->release(segment);
  }
}

void FileTier::expectFilter() { gate_.shut(); }

void FileTier::afterForkInChild() {
  gate_.forgetThreads();
  file_->afterForkInChild();
}

}  // namespace tidepool
