// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: making one, its rows' first values, arguments and row numbers.
#include "allocator/table/table.h"

#include <algorithm>
#include <cstring>

#include "allocator/table/shared_budget.h"
#include "allocator/table/table_scratch.h"
#include "runtime/base/check.h"

namespace tidepool {
namespace {

constexpr RowNumber kInitializePiece = 4096;
constexpr size_t kLeastMissed = 64;
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

EmbeddingTable::EmbeddingTable(SharedBudget* shared, const TableOptions& options,
                               std::unique_ptr<BackingStore> backing, Workers& workers)
    : shared_(shared),
      options_(options),
      format_(options.format),
      kernels_(kernels()),
      first_values_(options.format, options.initializer),
      workers_(workers),
      backing_(std::move(backing)),
      step_(options.step),
      missed_(workers.threads()) {
  // Which worker comes to see a miss is chance; what a table costs must not be.
  for (std::vector<RowNumber>& missed : missed_) missed.reserve(kLeastMissed);
  step_.step = 0;
}

EmbeddingTable::~EmbeddingTable() {
  backing_->setKeeper(nullptr);
  if (shared_ != nullptr) shared_->remove(*this);
  // What is under way borrows chunks of the link, which goes with the backing store.
  if (staged_) staged_->clear();
}

Status EmbeddingTable::check(const TableOptions& options) {
  const char* const name = options.name.c_str();
  if (options.format.dim == 0 || options.format.dim > RowFormat::kMaxDim) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s: %u elements a row; from 1 to %u are possible", name, options.format.dim,
                RowFormat::kMaxDim);
  }
  if (options.rows == 0 || options.rows >= kRowLimit) {
    return fail(ErrorCode::kInvalidArgument, "table %s: %llu rows; from 1 to %llu are possible",
                name, static_cast<unsigned long long>(options.rows),
                static_cast<unsigned long long>(kRowLimit - 1));
  }
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

Result<std::unique_ptr<EmbeddingTable>> EmbeddingTable::createIn(
    SharedBudget* shared, const TableOptions& options, std::unique_ptr<BackingStore> backing,
    Workers& workers) {
  TP_TRY(check(options));
  std::unique_ptr<EmbeddingTable> table(
      new EmbeddingTable(shared, options, std::move(backing), workers));
  TP_TRY(table->setUp());
  table->backing_->setKeeper(table.get());
  return table;
}

Status EmbeddingTable::setUp() {
  if (backing_->size().value() < options_.rows * format_.stride()) {
    return fail(ErrorCode::kInvalidArgument, "table %s: its backing store is too small",
                options_.name.c_str());
  }
  if (options_.ids == IdKind::kHashed) {
    auto ids = IdMap::create(options_.rows);
    if (!ids) return tl::unexpected(ids.error());
    ids_ = std::move(*ids);
    auto uses = RowUses::create(options_.tracked, options_.rows);
    if (!uses) return tl::unexpected(uses.error());
    uses_ = std::move(*uses);
  }
  if (admits()) {
    auto seen = SeenIds::create(options_.admit_after, rememberedIds(options_));
    if (!seen) return tl::unexpected(seen.error());
    seen_ = std::move(*seen);
  }
  if (backing_->kind() != TierKind::kLocal) TP_TRY(setUpCache());
  return options_.ids == IdKind::kDense ? initialize() : Status();
}

Status EmbeddingTable::initialize() {
  if (fetches()) return backing_->beginWith(first_values_, options_.rows);
  // Local memory and the granules of a direct tier are zeros to begin with.
  if (options_.initializer.kind == Initializer::Kind::kZero) return {};
  if (backing_->kind() == TierKind::kDirect) {
    workers_.run(backing_->hugePieces(),
                 [this](size_t piece, size_t) { backing_->makeHuge(piece); });
  }
  const RowNumber pieces = (options_.rows + kInitializePiece - 1) / kInitializePiece;
  workers_.run(pieces, [this](size_t piece, size_t) {
    const RowNumber end = std::min<RowNumber>((piece + 1) * kInitializePiece, options_.rows);
    for (RowNumber row = piece * kInitializePiece; row < end; ++row) {
      first_values_.encode(row, backing_->memory() + row * format_.stride());
    }
  });
  return {};
}

EmbeddingTable::Scratch& EmbeddingTable::scratch() {
  static thread_local Scratch buffers;
  return buffers;
}

Status EmbeddingTable::broken(const Error& error) {
  if (staged_) staged_->clear();
  for (std::vector<RowNumber>& missed : missed_) missed.clear();
  broken_ =
      Error::make(error.code(), "table %s was given up: %s", options_.name.c_str(), error.text());
  return tl::unexpected(*broken_);
}

Status EmbeddingTable::checkArguments(const Batch& batch) const {
  TP_TRY(checkOffsets(batch, options_.name.c_str()));
  if (options_.ids == IdKind::kHashed) return {};
  return checkDenseIds(batch.ids, options_.rows, options_.name.c_str());
}

Result<std::span<const RowNumber>> EmbeddingTable::rowNumbers(std::span<const int64_t> ids) {
  if (options_.ids == IdKind::kDense) {
    return std::span(reinterpret_cast<const RowNumber*>(ids.data()), ids.size());
  }
  row_numbers_.resize(ids.size());
  ids_.findMany(ids, row_numbers_.data());
  if (std::find(row_numbers_.begin(), row_numbers_.end(), IdMap::kNone) != row_numbers_.end()) {
    TP_TRY(insertNew(ids, row_numbers_));
  }
  return std::span<const RowNumber>(row_numbers_);
}

Result<std::span<const RowNumber>> EmbeddingTable::knownRows(std::span<const int64_t> ids,
                                                             std::vector<uint32_t>& without) {
  row_numbers_.resize(ids.size());
  ids_.findMany(ids, row_numbers_.data());
  size_t known = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const RowNumber row = row_numbers_[i];
    if (row == IdMap::kNone) {
      without.push_back(static_cast<uint32_t>(i));
    } else {
      row_numbers_[known++] = row;
    }
  }
  return std::span<const RowNumber>(row_numbers_).first(known);
}

Result<std::span<const RowNumber>> EmbeddingTable::admittedRows(std::span<const int64_t> ids,
                                                                std::vector<uint32_t>& without) {
  row_numbers_.resize(ids.size());
  ids_.findMany(ids, row_numbers_.data());
  if (std::find(row_numbers_.begin(), row_numbers_.end(), IdMap::kNone) == row_numbers_.end()) {
    return std::span<const RowNumber>(row_numbers_);
  }
  std::vector<int64_t> admitted;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (row_numbers_[i] != IdMap::kNone) continue;
    if (seen_.see(static_cast<uint64_t>(ids[i]))) admitted.push_back(ids[i]);
  }
  std::vector<RowNumber> rows(admitted.size(), IdMap::kNone);
  TP_TRY(insertNew(admitted, rows));
  return knownRows(ids, without);
}

Status EmbeddingTable::insertNew(std::span<const int64_t> ids, std::span<RowNumber> rows) {
  const size_t before = ids_.count();
  const RowNumber end = ids_.end();
  std::vector<RowNumber> born;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (rows[i] != IdMap::kNone) continue;
    const auto id = static_cast<uint64_t>(ids[i]);
    rows[i] = ids_.find(id);  // an earlier one of this batch may have been the same
    if (rows[i] != IdMap::kNone) continue;
    if (ids_.count() == ids_.capacity()) {
      ids_.undo(born, end);
      return fail(
          ErrorCode::kNoSpace,
          "table %s is full: it has %zu of the %zu rows that it may have, and new ids of the "
          "batch, such as %lld, have no room; remove some ids, or make it larger (restore its "
          "checkpoint into a larger one)",
          options_.name.c_str(), before, ids_.capacity(), static_cast<long long>(ids[i]));
    }
    rows[i] = ids_.insert(id);
    born.push_back(rows[i]);
  }
  Status begun;
  for (size_t i = 0; begun && i < born.size(); ++i) {
    begun = bringIntoBeing(born[i], ids_.id(born[i]));
  }
  if (begun && fetches()) begun = cache_->sendWriteBack();
  if (!begun) return broken(begun.error());
  counts_.inserted += born.size();
  for (size_t i = 0; admits() && i < born.size(); ++i) seen_.forget(ids_.id(born[i]));
  return {};
}

/// A new row begins in a slot if it can have one, else at its home.
Status EmbeddingTable::bringIntoBeing(RowNumber row, uint64_t id) {
  changes_.created(row);
  uses_.born(row, step_.step);
  if (!fetches()) {
    first_values_.encode(id, backing_->memory() + row * format_.stride());
    return {};
  }
  auto slot = cache_->place(row, cache_->miss(row));
  if (!slot) return tl::unexpected(slot.error());
  if (*slot != kNoSlot) {
    first_values_.encode(id, cache_->row(*slot));
    cache_->markDirty(*slot);
    return {};
  }
  std::vector<std::byte>& bytes = scratch().row;
  bytes.resize(format_.stride());
  first_values_.encode(id, bytes.data());
  return cache_->writeOut(row, bytes.data());
}

void EmbeddingTable::setStep(const OptimizerStep& step) {
  MutexLock lock(mutex_);
  const uint64_t number = step_.step;
  step_ = step;
  step_.step = number;
}

Bytes EmbeddingTable::idsMemory(const TableOptions& options) {
  if (options.ids == IdKind::kDense) return {};
  return IdMap::memoryFor(options.rows) + RowUses::memoryFor(options.tracked, options.rows) +
         (options.admit_after > 1 ? SeenIds::memoryFor(rememberedIds(options)) : Bytes());
}

size_t EmbeddingTable::knownIds(RowNumber first, std::span<int64_t> out) {
  MutexLock lock(mutex_);
  return ids_.list(first, out);
}

RowNumber EmbeddingTable::rows() {
  MutexLock lock(mutex_);
  return options_.ids == IdKind::kDense ? options_.rows : ids_.count();
}

}  // namespace tidepool
