// SPDX-License-Identifier: Apache-2.0
#include "allocator/table/seen_ids.h"

#include <algorithm>
#include <utility>

#include "runtime/base/debug_check.h"

namespace tidepool {

Bytes SeenIds::memoryFor(size_t remembered) {
  return (IdMap::memoryFor(remembered) + Bytes(remembered)) * 2;
}

Result<SeenIds> SeenIds::create(uint32_t after, size_t remembered) {
  SeenIds seen;
  seen.after_ = static_cast<uint8_t>(std::clamp<uint32_t>(after, 1, kMostTimes));
  for (Generation* generation : {&seen.young_, &seen.old_}) {
    auto ids = IdMap::create(remembered);
    if (!ids) return tl::unexpected(ids.error());
    auto memory = Mapping::anonymous(Bytes(roundUp(remembered, kPageSize)));
    if (!memory) return tl::unexpected(memory.error());
    generation->ids = std::move(*ids);
    generation->memory = std::move(*memory);
  }
  return seen;
}

uint8_t SeenIds::Generation::take(uint64_t id) {
  const RowNumber place = ids.find(id);
  if (place == IdMap::kNone) return 0;
  ids.erase(place);
  return times()[place];
}

bool SeenIds::see(uint64_t id) {
  RowNumber place = young_.ids.find(id);
  if (place == IdMap::kNone) {
    const uint8_t before = old_.take(id);
    if (young_.ids.count() == young_.ids.capacity()) {
      std::swap(young_, old_);
      young_.ids.clear();
    }
    place = young_.ids.insert(id);
    young_.times()[place] = before;
  }
  uint8_t& times = young_.times()[place];
  TP_DCHECK_OP(times, <=, after_);
  if (times < after_) ++times;
  return times == after_;
}

void SeenIds::forget(uint64_t id) {
  (void)young_.take(id);
  (void)old_.take(id);
}

void SeenIds::clear() {
  young_.ids.clear();
  old_.ids.clear();
}

}  // namespace tidepool
