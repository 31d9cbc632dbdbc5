// SPDX-License-Identifier: Apache-2.0
// Internals of EmbeddingTable that several of its files share: buffers of a thread, kept from call
// to call, the sizes of the pieces that work is cut into, and what calls on several tables check.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/table/table.h"

namespace tidepool {

/// Bags from `first` on whose far rows are in the first so many chunks of those that are staged.
struct StagedPiece {
  size_t first, end;
  size_t chunks;
};

struct EmbeddingTable::Scratch {
  std::vector<Slot> slots;
  std::vector<uint32_t> absent;  // positions in a piece
  std::vector<RowNumber> absent_rows;
  std::vector<Slot> places;
  std::vector<std::byte*> addresses;
  std::vector<uint32_t> offsets;
  std::vector<StagedPiece> pieces;
  std::vector<float> sum;
  std::vector<std::byte> row;
  std::vector<std::byte> initial;  // rows that ids without one would begin with
};

/// Look-ups whose rows are found together: their slots and addresses stay in the first-level cache.
inline constexpr size_t kPieceLookups = 1024;
/// Look-ups that are one task of a worker.
inline constexpr size_t kTaskLookups = 4 * kPieceLookups;
/// To give a row a slot takes about as long as so many look-ups.
inline constexpr size_t kLookupsAMiss = 8;
/// Look-ups that are checked in the time that one takes.
inline constexpr size_t kChecksALookup = 16;

template <typename Call>
Status EmbeddingTable::checkArguments(std::span<const Call> calls, Workers& workers) {
  std::vector<Status> statuses(calls.size());
  uint64_t lookups = 0;
  for (const Call& call : calls) lookups += call.batch.ids.size();
  const auto check = [&](size_t i, size_t) {
    statuses[i] = calls[i].table->checkArguments(calls[i].batch);
  };
  workers.run(calls.size(), check, lookups / kChecksALookup);
  for (const Status& status : statuses) TP_TRY(status);
  return {};
}

}  // namespace tidepool
