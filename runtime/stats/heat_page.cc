// SPDX-License-Identifier: Apache-2.0
// Adding pages up by ranges, and passing the result to other processes. See heat_page.h.
#include "runtime/stats/heat_page.h"

#include <algorithm>
#include <type_traits>

#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

using Words = std::array<uint64_t, sizeof(HeatRange) / sizeof(uint64_t)>;
static_assert(sizeof(HeatRange) == 64 && std::has_unique_object_representations_v<HeatRange>);

}  // namespace

void HeatRange::add(const PageHeat& page, uint32_t count) {
  TP_DCHECK_OP(page.heat, <=, kMostHeat);
  places[static_cast<size_t>(page.place)] += count;
  const uint64_t learned = page.learned.value();
  if (learned == 0) return;
  known += count;
  heat += page.heat * count;
  if (page.heat >= kHot) hot += count;
  if (page.heat >= kHot && page.place != HeatPlace::kLocal) hot_far += count;
  oldest = oldest == 0 ? learned : std::min(oldest, learned);
  newest = std::max(newest, learned);
}

void HeatRange::add(const HeatRange& other) {
  for (size_t i = 0; i < kHeatPlaces; ++i) places[i] += other.places[i];
  known += other.known;
  hot += other.hot;
  hot_far += other.hot_far;
  heat += other.heat;
  newest = std::max(newest, other.newest);
  if (other.oldest != 0) oldest = oldest == 0 ? other.oldest : std::min(oldest, other.oldest);
}

void HeatMap::add(uint64_t address, const PageHeat& page, uint64_t count) {
  while (count > 0) {
    const uint64_t start = roundDown(address, width_.value());
    TP_DCHECK(count_ == 0 || start >= ranges_[count_ - 1].start);
    if (count_ == 0 || ranges_[count_ - 1].start != start) {
      if (count_ == kMaxHeatRanges) {
        fit(kMaxHeatRanges - 1);
        continue;
      }
      ranges_[count_++] = {.start = start};
    }
    const uint64_t in_range = (start + width_.value() - address) >> kPageShift;
    const uint64_t added = std::min(count, in_range);
    ranges_[count_ - 1].add(page, static_cast<uint32_t>(added));
    count -= added;
    address += added << kPageShift;
  }
}

void HeatMap::fit(size_t most) {
  while (count_ > std::max<size_t>(most, 1)) widen();
}

void HeatMap::widen() {
  width_ = width_ * 2;
  size_t kept = 0;
  for (size_t i = 0; i < count_; ++i) {
    HeatRange range = ranges_[i];
    range.start = roundDown(range.start, width_.value());
    if (kept > 0 && ranges_[kept - 1].start == range.start) {
      ranges_[kept - 1].add(range);
    } else {
      ranges_[kept++] = range;
    }
  }
  count_ = kept;
}

// Release stores, so that who sees one of them sees that the version is odd, too.
void HeatPage::write(const HeatMap& map) {
  constexpr auto kRelease = std::memory_order_release;
  const uint64_t odd = version.load(std::memory_order_relaxed) + 1;
  TP_DCHECK(odd % 2 == 1);
  version.store(odd, std::memory_order_relaxed);
  begun.store(map.begun.value(), kRelease);
  ended.store(map.ended.value(), kRelease);
  cpu.store(map.cpu.value(), kRelease);
  width.store(map.width().value(), kRelease);
  count.store(map.ranges().size(), kRelease);
  for (size_t i = 0; i < map.ranges().size(); ++i) {
    const auto words = std::bit_cast<Words>(map.ranges()[i]);
    for (size_t word = 0; word < words.size(); ++word) ranges[i][word].store(words[word], kRelease);
  }
  version.store(odd + 1, kRelease);  // pairs with the first load in read()
}

bool HeatPage::read(HeatMap& out) const {
  constexpr auto kAcquire = std::memory_order_acquire;
  const uint64_t before = version.load(kAcquire);
  if (before == 0 || before % 2 != 0) return false;
  out.begun = Nanoseconds(begun.load(kAcquire));
  out.ended = Nanoseconds(ended.load(kAcquire));
  out.cpu = Nanoseconds(cpu.load(kAcquire));
  out.width_ = Bytes(width.load(kAcquire));
  out.count_ = std::min<uint64_t>(count.load(kAcquire), kMaxHeatRanges);
  for (size_t i = 0; i < out.count_; ++i) {
    Words words;
    for (size_t word = 0; word < words.size(); ++word) words[word] = ranges[i][word].load(kAcquire);
    out.ranges_[i] = std::bit_cast<HeatRange>(words);
  }
  // Whoever writes such a width is none of us; it must not lead to endless loops.
  if (!std::has_single_bit(out.width_.value()) || out.width_ < HeatMap::kLeastWidth) return false;
  return version.load(std::memory_order_relaxed) == before;
}

}  // namespace tidepool
