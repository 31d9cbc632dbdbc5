// SPDX-License-Identifier: Apache-2.0
#include "allocator/table/row_uses.h"

namespace tidepool {

Bytes RowUses::memoryFor(Tracked what, RowNumber rows) {
  Bytes memory;
  if (tracks(what, Tracked::kLastUse)) memory += Bytes(rows * sizeof(uint32_t));
  if (tracks(what, Tracked::kUses)) memory += Bytes(rows * sizeof(uint16_t));
  return memory;
}

Result<RowUses> RowUses::create(Tracked what, RowNumber rows) {
  RowUses kept;
  kept.tracked_ = what;
  const auto map = [rows](size_t each, Mapping& to) -> Status {
    auto memory = Mapping::anonymous(Bytes(roundUp(rows * each, kPageSize)));
    if (!memory) return tl::unexpected(memory.error());
    to = std::move(*memory);
    return {};
  };
  if (tracks(what, Tracked::kLastUse)) {
    TP_TRY(map(sizeof(uint32_t), kept.last_memory_));
    kept.last_ = reinterpret_cast<uint32_t*>(kept.last_memory_.data());
  }
  if (tracks(what, Tracked::kUses)) {
    TP_TRY(map(sizeof(uint16_t), kept.uses_memory_));
    kept.uses_ = reinterpret_cast<uint16_t*>(kept.uses_memory_.data());
  }
  return kept;
}

}  // namespace tidepool
