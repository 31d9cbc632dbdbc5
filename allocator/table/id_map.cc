// SPDX-License-Identifier: Apache-2.0
// IdMap: linear probing over four-byte places, from which ids are deleted without a trace: those
// that were pushed on by the id move back (Knuth, The Art of Computer Programming 3, 6.4, algorithm
// R), so that searches stay as short as if it had never been there. Memory is taken as it is
// touched.
#include "allocator/table/id_map.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

constexpr size_t kLoadNumerator = 2, kLoadDenominator = 3;
constexpr size_t kAhead = 16;
constexpr size_t kMostIds = size_t{0xffffffff} - 1;

uint64_t placesFor(size_t rows) { return rows * kLoadDenominator / kLoadNumerator + 2; }
uint64_t freeWordsFor(size_t rows) { return (rows + 63) / 64; }

}  // namespace

Bytes IdMap::memoryFor(size_t rows) {
  return Bytes(placesFor(rows) * sizeof(uint32_t) +
               (rows + 2 * freeWordsFor(rows)) * sizeof(uint64_t));
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
  auto free = Mapping::anonymous(Bytes(roundUp(freeWordsFor(rows) * sizeof(uint64_t), kPageSize)));
  if (!free) return tl::unexpected(free.error());
  map.ids_ = std::move(*ids);
  map.free_bits_ = std::move(*free);
  map.free_ = reinterpret_cast<uint64_t*>(map.free_bits_.data());
  return map;
}

uint64_t IdMap::home(uint64_t id) const {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(mixId(id)) * place_count_) >> 64);
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

void IdMap::place(uint64_t id, RowNumber row) {
  uint64_t place = home(id);
  while (places()[place] != 0) {
    TP_CHECK_OP(idsByRow()[places()[place] - 1], !=, id);
    place = next(place);
  }
  idWords()[row] = id;
  places()[place] = static_cast<uint32_t>(row + 1);
  ++count_;
}

RowNumber IdMap::insert(uint64_t id) {
  TP_CHECK_OP(count_, <, capacity_);
  if (first_free_ == kNone) {
    append(id);
    return end_ - 1;
  }
  const RowNumber row = first_free_;
  TP_CHECK(row < end_ && !live(row));
  first_free_ = idsByRow()[row];
  free_[row / 64] &= ~(uint64_t{1} << row % 64);
  place(id, row);
  return row;
}

void IdMap::append(uint64_t id) {
  TP_CHECK_OP(end_, <, capacity_);
  place(id, end_);
  ++end_;
}

void IdMap::appendFree() {
  TP_CHECK_OP(end_, <, capacity_);
  setFree(end_++);
}

void IdMap::setFree(RowNumber row) {
  TP_DCHECK(live(row));  // or the list of free rows becomes a ring
  free_[row / 64] |= uint64_t{1} << row % 64;
  idWords()[row] = std::exchange(first_free_, row);
}

/// Out of the places alone.
void IdMap::takeOut(uint64_t id) {
  uint64_t hole = home(id);
  for (;; hole = next(hole)) {
    TP_CHECK(places()[hole] != 0);  // it is not there
    if (idsByRow()[places()[hole] - 1] == id) break;
  }
  for (uint64_t place = next(hole); places()[place] != 0; place = next(place)) {
    // It stays if its search begins behind the hole, seen in the direction of searches.
    const uint64_t begins = home(idsByRow()[places()[place] - 1]);
    const uint64_t from_hole = (place + place_count_ - hole) % place_count_;
    if ((place + place_count_ - begins) % place_count_ < from_hole) continue;
    places()[hole] = places()[place];
    hole = place;
  }
  places()[hole] = 0;
  --count_;
}

void IdMap::erase(RowNumber row) {
  TP_CHECK_OP(row, <, end_);
  TP_CHECK(live(row));
  takeOut(id(row));
  setFree(row);
}

void IdMap::undo(std::span<const RowNumber> rows, RowNumber end) {
  for (size_t i = rows.size(); i > 0; --i) {
    const RowNumber row = rows[i - 1];
    takeOut(id(row));
    if (row < end) {
      setFree(row);
    } else {
      --end_;
    }
  }
  TP_CHECK_OP(end_, ==, end);
}

void IdMap::clear() {
  std::fill_n(places(), end_ == 0 ? 0 : place_count_, 0u);
  std::fill_n(free_, freeWordsFor(end_), uint64_t{0});
  count_ = 0;
  end_ = 0;
  first_free_ = kNone;
}

size_t IdMap::list(size_t first, std::span<int64_t> out) const {
  size_t listed = 0;
  for (RowNumber from = 0; from < end_ && listed < out.size(); from += 64) {
    uint64_t live = ~free_[from / 64];
    if (end_ - from < 64) live &= (uint64_t{1} << (end_ - from)) - 1;
    const auto many = static_cast<size_t>(std::popcount(live));
    if (first >= many) {
      first -= many;
      continue;
    }
    for (; live != 0 && listed < out.size(); live &= live - 1) {
      if (first > 0) {
        --first;
        continue;
      }
      const RowNumber row = from + static_cast<RowNumber>(std::countr_zero(live));
      out[listed++] = static_cast<int64_t>(id(row));
    }
  }
  return listed;
}

Bytes IdMap::memory() const {
  return Bytes(place_count_ * sizeof(uint32_t) + (end_ + freeWordsFor(end_)) * sizeof(uint64_t));
}

}  // namespace tidepool
