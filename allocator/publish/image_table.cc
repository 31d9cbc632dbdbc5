// SPDX-License-Identifier: Apache-2.0
// ImageTable: where rows are, and of hashed ids which row is whose, as IdMap has it: linear
// probing, and ids are taken out without a trace.
#include <cstring>

#include "allocator/publish/image.h"
#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

/// As it lies in the file.
struct Encoded {
  uint64_t rows, seed;
  float first, second;
  uint32_t dim;
  uint8_t element, ids, initializer, name_bytes;
  char name[ImageTable::kMostName];
};
static_assert(sizeof(Encoded) <= 512);

// Ids whose records are asked for before they are looked at.
constexpr size_t kAhead = 16;

uint32_t load(const uint32_t& from) { return __atomic_load_n(&from, __ATOMIC_RELAXED); }
void store(uint32_t& to, uint32_t value) { __atomic_store_n(&to, value, __ATOMIC_RELAXED); }

}  // namespace

ImageTable::ImageTable(const TableOptions& options)
    : name_(options.name),
      rows_(options.rows),
      format_{options.format.type, Optimizer::kSgd, options.format.dim},
      ids_(options.ids),
      initializer_(options.initializer) {}

Result<ImageTable> ImageTable::decode(const std::byte* from) {
  Encoded encoded;
  memcpy(&encoded, from, sizeof encoded);
  if (encoded.rows == 0 || encoded.rows > kMostRows || encoded.dim == 0 ||
      encoded.dim > RowFormat::kMaxDim || encoded.element >= kElementTypes || encoded.ids > 1 ||
      encoded.initializer > 2) {
    return fail(ErrorCode::kCorrupt, "what it says of a table cannot be");
  }
  TableOptions options;
  options.name.assign(encoded.name, encoded.name_bytes);
  options.rows = encoded.rows;
  options.format = {static_cast<ElementType>(encoded.element), Optimizer::kSgd, encoded.dim};
  options.ids = static_cast<IdKind>(encoded.ids);
  options.initializer = {static_cast<Initializer::Kind>(encoded.initializer), encoded.first,
                         encoded.second, encoded.seed};
  return ImageTable(options);
}

void ImageTable::encode(std::byte* to) const {
  Encoded encoded{};
  encoded.rows = rows_;
  encoded.seed = initializer_.seed;
  encoded.first = initializer_.first;
  encoded.second = initializer_.second;
  encoded.dim = format_.dim;
  encoded.element = static_cast<uint8_t>(format_.type);
  encoded.ids = static_cast<uint8_t>(ids_);
  encoded.initializer = static_cast<uint8_t>(initializer_.kind);
  encoded.name_bytes = static_cast<uint8_t>(name_.size());
  memcpy(encoded.name, name_.data(), name_.size());
  memcpy(to, &encoded, sizeof encoded);
}

bool ImageTable::operator==(const ImageTable& other) const {
  return name_ == other.name_ && rows_ == other.rows_ && format_ == other.format_ &&
         ids_ == other.ids_ && initializer_ == other.initializer_;
}

uint64_t ImageTable::layOut(uint64_t at) {
  const auto take = [&at](uint64_t bytes) {
    const uint64_t from = at;
    at = roundUp(at + bytes, kPageSize);
    return from;
  };
  for (uint64_t& places_at : places_at_) places_at = take(rows_ * sizeof(RecordPlace));
  for (uint64_t& entries_at : entries_at_) entries_at = take(entryCount() * sizeof(uint32_t));
  records_at_ = take(uint64_t{mostRecords()} * recordBytes());
  return at;
}

uint64_t ImageTable::home(uint64_t id) const {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(mixId(id)) * entryCount()) >> 64);
}

RecordPlace ImageTable::findHashed(unsigned half, uint64_t wanted) const {
  uint64_t entry = home(wanted);
  // A half that is being written may have no end to come to.
  for (uint64_t looked = 0; looked < entryCount(); ++looked, entry = next(entry)) {
    const uint32_t stored = load(entries(half)[entry]);
    if (stored == 0) return 0;
    if (stored > rows_) continue;  // of none that is whole
    const RecordPlace found = place(half, stored - 1);
    if (found != 0 && id(found) == wanted) return found;
  }
  return 0;
}

void ImageTable::findMany(unsigned half, std::span<const int64_t> ids, RecordPlace* found) const {
  const size_t count = ids.size();
  const auto idAt = [&](size_t i) { return static_cast<uint64_t>(ids[i]); };
  if (ids_ == IdKind::kDense) {
    for (size_t i = 0; i < count; ++i) found[i] = place(half, idAt(i));
    return;
  }
  const uint32_t* const entries = this->entries(half);
  const auto firstRow = [&](size_t i) { return RowNumber{load(entries[home(idAt(i))])} - 1; };
  // Three cache misses an id, each asked for some ids ahead: the entry, the place, the record.
  for (size_t i = 0; i < count + 3 * kAhead; ++i) {
    if (i < count) __builtin_prefetch(&entries[home(idAt(i))]);
    if (i >= kAhead && i - kAhead < count) {
      const RowNumber row = firstRow(i - kAhead);
      if (row < rows_) __builtin_prefetch(&places(half)[row]);
    }
    if (i >= 2 * kAhead && i - 2 * kAhead < count) {
      const RowNumber row = firstRow(i - 2 * kAhead);
      if (row < rows_) __builtin_prefetch(record(place(half, row)));
    }
    if (i >= 3 * kAhead) found[i - 3 * kAhead] = findHashed(half, idAt(i - 3 * kAhead));
  }
}

void ImageTable::point(unsigned half, RowNumber row, RecordPlace to) {
  TP_DCHECK_OP(row, <, rows_);
  const RecordPlace from = place(half, row);
  const bool same_id = ids_ == IdKind::kDense || (from != 0 && to != 0 && id(from) == id(to));
  if (!same_id && from != 0) erase(half, row);
  store(places(half)[row], to);
  if (!same_id && to != 0) insert(half, row);
}

void ImageTable::insert(unsigned half, RowNumber row) {
  uint64_t entry = home(id(place(half, row)));
  while (load(entries(half)[entry]) != 0) entry = next(entry);  // one more than rows are there
  store(entries(half)[entry], static_cast<uint32_t>(row + 1));
}

void ImageTable::erase(unsigned half, RowNumber row) {
  uint32_t* const entries = this->entries(half);
  uint64_t hole = home(id(place(half, row)));
  for (; load(entries[hole]) != row + 1; hole = next(hole)) {
    TP_CHECK(load(entries[hole]) != 0);  // it is not there
  }
  for (uint64_t entry = next(hole); load(entries[entry]) != 0; entry = next(entry)) {
    // It stays if its search begins behind the hole, seen in the direction of searches.
    const uint64_t begins = home(id(place(half, load(entries[entry]) - 1)));
    const uint64_t from_hole = (entry + entryCount() - hole) % entryCount();
    if ((entry + entryCount() - begins) % entryCount() < from_hole) continue;
    store(entries[hole], load(entries[entry]));
    hole = entry;
  }
  store(entries[hole], 0);
}

bool ImageTable::findsEach(unsigned half) const {
  if (ids_ == IdKind::kDense) return true;
  uint64_t used = 0;  // no more than rows: there is room for searches to end
  for (uint64_t entry = 0; entry < entryCount(); ++entry) used += entries(half)[entry] != 0;
  for (RowNumber row = 0; row < rows_; ++row) used -= place(half, row) != 0;
  if (used != 0) return false;
  for (RowNumber row = 0; row < rows_; ++row) {
    const RecordPlace at = place(half, row);
    if (at != 0 && findHashed(half, id(at)) != at) return false;
  }
  return true;
}

void ImageTable::copyHalf(unsigned from, unsigned to) {
  memcpy(places(to), places(from), rows_ * sizeof(RecordPlace));
  memcpy(entries(to), entries(from), entryCount() * sizeof(uint32_t));
}

}  // namespace tidepool
