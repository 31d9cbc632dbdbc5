// SPDX-License-Identifier: Apache-2.0
// IdMap: linear probing over four-byte places; memory is taken as it is touched.
#include "allocator/table/id_map.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

constexpr size_t kLoadNumerator = 2, kLoadDenominator = 3;
constexpr size_t kAhead = 16;
constexpr size_t kMostIds = size_t{0xffffffff} - 1;

/// Ids may be anything, multiples of a power of two for instance: all bits are mixed (the finalizer
/// of MurmurHash3, Appleby 2011).
uint64_t mix(uint64_t id) {
  id = (id ^ (id >> 33)) * 0xFF51AFD7ED558CCDull;
  id = (id ^ (id >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return id ^ (id >> 33);
}

uint64_t placesFor(size_t rows) { return rows * kLoadDenominator / kLoadNumerator + 2; }

}  // namespace

Bytes IdMap::memoryFor(size_t rows) {
  return Bytes(placesFor(rows) * sizeof(uint32_t) + rows * sizeof(uint64_t));
}

Result<IdMap> IdMap::create(size_t rows) {
  if (rows == 0 || rows > kMostIds) {
    return fail(ErrorCode::kInvalidArgument,
                "a table with hashed ids cannot have %zu rows; from 1 to %zu are possible", rows,
                kMostIds);
  }
  IdMap map;
  map.capacity_ = rows;
  map.place_count_ = placesFor(rows);
  auto places = Mapping::anonymous(Bytes(roundUp(map.place_count_ * sizeof(uint32_t), kPageSize)));
  if (!places) return tl::unexpected(places.error());
  auto ids = Mapping::anonymous(Bytes(roundUp(rows * sizeof(uint64_t), kPageSize)));
  if (!ids) return tl::unexpected(ids.error());
  map.places_ = std::move(*places);
  map.ids_ = std::move(*ids);
  return map;
}

uint64_t IdMap::home(uint64_t id) const {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(mix(id)) * place_count_) >> 64);
}

RowNumber IdMap::find(uint64_t id) const {
  for (uint64_t place = home(id);; place = next(place)) {
    const uint32_t stored = places()[place];
    if (stored == 0) return kNone;
    if (idsByRow()[stored - 1] == id) return stored - 1;
  }
}

void IdMap::findMany(std::span<const int64_t> ids, RowNumber* rows) const {
  // Two cache misses an id, each asked for some ids ahead: the place, then the id of its row.
  const size_t count = ids.size();
  for (size_t i = 0; i < count + 2 * kAhead; ++i) {
    if (i < count) __builtin_prefetch(&places()[home(static_cast<uint64_t>(ids[i]))]);
    if (i >= kAhead && i - kAhead < count) {
      const uint32_t stored = places()[home(static_cast<uint64_t>(ids[i - kAhead]))];
      if (stored != 0) __builtin_prefetch(&idsByRow()[stored - 1]);
    }
    if (i >= 2 * kAhead) rows[i - 2 * kAhead] = find(static_cast<uint64_t>(ids[i - 2 * kAhead]));
  }
}

RowNumber IdMap::insert(uint64_t id) {
  TP_CHECK_OP(count_, <, capacity_);
  uint64_t place = home(id);
  while (places()[place] != 0) {
    TP_CHECK_OP(idsByRow()[places()[place] - 1], !=, id);
    place = next(place);
  }
  idsByRow()[count_] = id;
  places()[place] = static_cast<uint32_t>(++count_);
  return count_ - 1;
}

void IdMap::removeLast(size_t count) {
  TP_CHECK_OP(count, <=, count_);
  for (; count > 0; --count) {
    // Nothing was inserted after it, so no search leads over its place: it just becomes empty.
    uint64_t place = home(idsByRow()[count_ - 1]);
    while (places()[place] != count_) place = next(place);
    places()[place] = 0;
    --count_;
  }
}

Bytes IdMap::memory() const {
  return Bytes(place_count_ * sizeof(uint32_t) + count_ * sizeof(uint64_t));
}

}  // namespace tidepool
