// SPDX-License-Identifier: Apache-2.0
// TableIds: finding, giving out and taking back rows.
#include "allocator/table/table_ids.h"

#include <algorithm>

namespace tidepool {
namespace {

// Of a small table: a batch or two are remembered all the same.
constexpr uint64_t kLeastRemembered = 4096;
constexpr uint64_t kRememberedShare = 4;

/// Ids without a row that are counted.
uint64_t rememberedIds(const TableOptions& options) {
  if (options.admit_after <= 1) return 0;
  if (options.remembered_ids > 0) return options.remembered_ids;
  return std::max(options.rows / kRememberedShare, kLeastRemembered);
}

}  // namespace

Status TableIds::check(const TableOptions& options) {
  const char* const name = options.name.c_str();
  if (options.tracked != Tracked::kNothing && options.ids == IdKind::kDense) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s: uses are tracked of rows with hashed ids, and its ids are dense", name);
  }
  if (options.admit_after > 1 && options.ids == IdKind::kDense) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s: hashed ids are admitted, and its ids are dense", name);
  }
  if (options.admit_after > SeenIds::kMostTimes || options.remembered_ids >= UINT32_MAX) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s: ids are admitted after %u times, and %llu remembered; up to %u, and "
                "fewer than %u are possible",
                name, options.admit_after, static_cast<unsigned long long>(options.remembered_ids),
                SeenIds::kMostTimes, UINT32_MAX);
  }
  return {};
}

Status TableIds::setUp() {
  if (!hashed()) return {};
  auto map = IdMap::create(options_.rows);
  if (!map) return tl::unexpected(map.error());
  map_ = std::move(*map);
  auto uses = RowUses::create(options_.tracked, options_.rows);
  if (!uses) return tl::unexpected(uses.error());
  uses_ = std::move(*uses);
  if (!admits()) return {};
  auto seen = SeenIds::create(options_.admit_after, rememberedIds(options_));
  if (!seen) return tl::unexpected(seen.error());
  seen_ = std::move(*seen);
  return {};
}

Bytes TableIds::memoryFor(const TableOptions& options) {
  if (options.ids == IdKind::kDense) return {};
  return IdMap::memoryFor(options.rows) + RowUses::memoryFor(options.tracked, options.rows) +
         (options.admit_after > 1 ? SeenIds::memoryFor(rememberedIds(options)) : Bytes());
}

Bytes TableIds::memory() const {
  if (!hashed()) return {};
  return map_.memory() + RowUses::memoryFor(options_.tracked, map_.end()) + seen_.memory();
}

std::span<const uint64_t> TableIds::freeWords() const {
  return hashed() ? map_.freeWords() : std::span<const uint64_t>();
}

/// Whether all have a row.
bool TableIds::findAll(std::span<const int64_t> ids) {
  found_.resize(ids.size());
  map_.findMany(ids, found_.data());
  return std::find(found_.begin(), found_.end(), IdMap::kNone) == found_.end();
}

std::span<const RowNumber> TableIds::known(std::span<const int64_t> ids,
                                           std::vector<uint32_t>& without) {
  if (findAll(ids)) return found_;
  size_t known = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const RowNumber row = found_[i];
    if (row == IdMap::kNone) {
      without.push_back(static_cast<uint32_t>(i));
    } else {
      found_[known++] = row;
    }
  }
  return std::span<const RowNumber>(found_).first(known);
}

Result<std::span<const RowNumber>> TableIds::forWriting(std::span<const int64_t> ids) {
  made_.clear();
  if (!hashed()) return std::span(reinterpret_cast<const RowNumber*>(ids.data()), ids.size());
  if (!findAll(ids)) TP_TRY(insertNew(ids, found_));
  return std::span<const RowNumber>(found_);
}

Result<std::span<const RowNumber>> TableIds::forStep(std::span<const int64_t> ids,
                                                     std::vector<uint32_t>& without) {
  made_.clear();
  return admits() ? known(ids, without) : forWriting(ids);
}

Result<std::span<const RowNumber>> TableIds::forLookUp(const Batch& batch,
                                                       std::vector<uint32_t>& without) {
  made_.clear();
  if (hashed() && batch.absent != Absent::kInsert) return known(batch.ids, without);
  return admits() ? admitted(batch.ids, without) : forWriting(batch.ids);
}

Result<std::span<const RowNumber>> TableIds::admitted(std::span<const int64_t> ids,
                                                      std::vector<uint32_t>& without) {
  if (findAll(ids)) return std::span<const RowNumber>(found_);
  std::vector<int64_t> admitted;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (found_[i] != IdMap::kNone) continue;
    if (seen_.see(static_cast<uint64_t>(ids[i]))) admitted.push_back(ids[i]);
  }
  std::vector<RowNumber> rows(admitted.size(), IdMap::kNone);
  TP_TRY(insertNew(admitted, rows));
  return known(ids, without);
}

Status TableIds::insertNew(std::span<const int64_t> ids, std::span<RowNumber> rows) {
  const size_t before = map_.count();
  const RowNumber end = map_.end();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (rows[i] != IdMap::kNone) continue;
    const auto id = static_cast<uint64_t>(ids[i]);
    rows[i] = map_.find(id);  // an earlier one of this batch may have been the same
    if (rows[i] != IdMap::kNone) continue;
    if (map_.count() == map_.capacity()) {
      map_.undo(made_, end);
      return fail(
          ErrorCode::kNoSpace,
          "table %s is full: it has %zu of the %zu rows that it may have, and new ids of the "
          "batch, such as %lld, have no room; remove some ids, or make it larger (restore its "
          "checkpoint into a larger one)",
          options_.name.c_str(), before, map_.capacity(), static_cast<long long>(ids[i]));
    }
    rows[i] = map_.insert(id);
    made_.push_back(rows[i]);
  }
  for (size_t i = 0; admits() && i < made_.size(); ++i) seen_.forget(map_.id(made_[i]));
  return {};
}

Status TableIds::existing(std::span<const int64_t> ids, std::vector<RowNumber>& rows) const {
  rows.resize(ids.size());
  if (!hashed()) {
    std::copy(ids.begin(), ids.end(), rows.begin());  // of none, too
    return {};
  }
  map_.findMany(ids, rows.data());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != IdMap::kNone) continue;
    return fail(ErrorCode::kNotFound, "table %s: ids[%zu] is %lld, which has no row",
                options_.name.c_str(), i, static_cast<long long>(ids[i]));
  }
  return {};
}

Status TableIds::checkHashed(const TableOptions& options, const char* what) {
  if (options.ids == IdKind::kHashed) return {};
  return fail(ErrorCode::kUnsupported, "table %s has dense ids, whose rows stay: %s hashed ids",
              options.name.c_str(), what);
}

Status TableIds::checkExpiry(const TableOptions& options, const Expiry& expiry) {
  TP_TRY(checkHashed(options, "expire() is for"));
  const char* const name = options.name.c_str();
  if (expiry.unused_for == 0 && expiry.used_fewer_than == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s: which rows are to go? unused_for or used_fewer_than says so", name);
  }
  const bool by_step = expiry.unused_for == 0 || tracks(options.tracked, Tracked::kLastUse);
  if (!by_step || (expiry.used_fewer_than > 0 && !tracks(options.tracked, Tracked::kUses))) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s was made without tracking %s of its rows, which %s takes", name,
                by_step ? "the uses" : "the last use", by_step ? "used_fewer_than" : "unused_for");
  }
  if (expiry.used_fewer_than <= RowUses::kMostUses) return {};
  return fail(ErrorCode::kInvalidArgument, "table %s: uses are counted up to %llu, not %llu", name,
              static_cast<unsigned long long>(RowUses::kMostUses),
              static_cast<unsigned long long>(expiry.used_fewer_than));
}

std::vector<RowNumber> TableIds::present(std::span<const int64_t> ids) const {
  std::vector<RowNumber> rows(ids.size());
  map_.findMany(ids, rows.data());
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  if (!rows.empty() && rows.back() == IdMap::kNone) rows.pop_back();
  return rows;
}

void TableIds::expired(const Expiry& expiry, uint64_t step, RowNumber first, RowNumber end,
                       std::vector<RowNumber>& rows) const {
  for (RowNumber row = first; row < end; ++row) {
    if (expiry.takes(uses_.get(row), step) && map_.live(row)) rows.push_back(row);
  }
}

void TableIds::clear() {
  if (hashed()) map_.clear();
  if (admits()) seen_.clear();
}

Status TableIds::assign(const Given& given) {
  for (RowNumber row = 0; row < given.ids.size(); ++row) {
    const uint64_t id = given.ids[row];
    if (!given.live.test(row)) {
      map_.appendFree();
      continue;
    }
    if (map_.find(id) != IdMap::kNone) {
      return fail(ErrorCode::kCorrupt, "table %s: id %llu has two rows in the checkpoint",
                  options_.name.c_str(), static_cast<unsigned long long>(id));
    }
    map_.append(id);
    if (!given.uses.empty()) uses_.set(row, given.uses[row]);
  }
  return {};
}

}  // namespace tidepool
