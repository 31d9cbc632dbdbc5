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
      plan_(options_, backing_->kind(),
            shared == nullptr ? Bytes() : LiveCurve::memoryFor(backing_->size())),
      ids_(options_),
      step_(options.format, options.step),
      missed_(workers.threads()) {
  // Which worker comes to see a miss is chance; what a table costs must not be.
  for (std::vector<RowNumber>& missed : missed_) missed.reserve(kLeastMissed);
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
  return TableIds::check(options);
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
  TP_TRY(ids_.setUp());
  if (backing_->kind() != TierKind::kLocal) TP_TRY(setUpCache());
  return ids_.hashed() ? Status() : initialize();
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

Result<std::span<const RowNumber>> EmbeddingTable::madeRows(
    Result<std::span<const RowNumber>> found) {
  if (!found || ids_.made().empty()) return found;
  Status begun;
  for (const RowNumber row : ids_.made()) {
    begun = bringIntoBeing(row);
    if (!begun) break;
  }
  if (begun && fetches()) begun = cache_->sendWriteBack();
  if (!begun) return tl::unexpected(broken(begun.error()).error());
  counts_.inserted += ids_.made().size();
  return found;
}

/// A new row begins in a slot if it can have one, else at its home.
Status EmbeddingTable::bringIntoBeing(RowNumber row) {
  const uint64_t id = ids_.id(row);
  changes_.created(row);
  ids_.born(row, step_.number());
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
  step_.setRates(step);
}

size_t EmbeddingTable::knownIds(RowNumber first, std::span<int64_t> out) {
  MutexLock lock(mutex_);
  return ids_.list(first, out);
}

RowNumber EmbeddingTable::rows() {
  MutexLock lock(mutex_);
  return ids_.count();
}

}  // namespace tidepool
