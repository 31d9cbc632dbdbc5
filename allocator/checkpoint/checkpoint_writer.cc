// SPDX-License-Identifier: Apache-2.0
// CheckpointWriter: one thread reads the tables, some write. Those who write take no table's lock,
// so training may wait for them with the lock held.
#include "allocator/checkpoint/checkpoint_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "allocator/checkpoint/state_file.h"
#include "runtime/base/log.h"

namespace tidepool {
namespace {

uint64_t now() {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

CheckpointId newId() {
  std::random_device random;
  CheckpointId id = 0;
  while (id == 0) id = uint64_t{random()} << 32 | random();
  return id;
}

/// Blocks that the reader of the tables fills while as many are being written. Large enough that a
/// write costs the disk little beside its bytes.
constexpr size_t kScanBlocks = 2 * TableSnapshot::kBlocks;
constexpr Bytes kScanBlock(kMiB);
/// Every worker of every table may hold one that is not full, so these are smaller.
constexpr Bytes kCopyBlock(128 * kKiB);
constexpr size_t kLeastCopyBlocks = 4;

Status checkNames(std::span<EmbeddingTable* const> tables) {
  if (tables.empty()) {
    return fail(ErrorCode::kInvalidArgument, "a checkpoint of no tables");
  }
  std::set<std::string> names;
  for (const EmbeddingTable* table : tables) {
    const std::string& name = table->options().name;
    if (!names.insert(name).second) {
      return fail(ErrorCode::kInvalidArgument,
                  "two tables of the checkpoint are called %s; give each a name of its "
                  "own",
                  name.c_str());
    }
    if (name.size() > RowFileHeader::kMostName) {
      return fail(ErrorCode::kInvalidArgument,
                  "a table's name has %zu bytes; at most %zu can be saved", name.size(),
                  RowFileHeader::kMostName);
    }
  }
  return {};
}

}  // namespace

CheckpointWriter::CheckpointWriter(CheckpointDirectory directory, const CheckpointOptions& options)
    : directory_(std::move(directory)),
      options_(options),
      scanned_(kScanBlocks, kScanBlock),
      copied_(0, kCopyBlock) {}

Bytes CheckpointWriter::memoryFor(const CheckpointOptions& options) {
  return kScanBlock * kScanBlocks + options.copies;
}

Result<std::unique_ptr<CheckpointWriter>> CheckpointWriter::start(
    std::span<EmbeddingTable* const> tables, const std::string& directory, CheckpointKind kind,
    const CheckpointOptions& options) {
  TP_TRY(checkNames(tables));
  if (kind == CheckpointKind::kIncremental && options.after == ChangesAfter::kCountAsBefore) {
    return tidepool::fail(ErrorCode::kInvalidArgument,
                          "an incremental checkpoint cannot be taken aside; take a full one");
  }
  auto opened = CheckpointDirectory::openToWrite(directory);
  if (!opened) return tl::unexpected(opened.error());
  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(std::move(*opened), options));
  TP_TRY(writer->prepare(tables, kind));
  const Status started = writer->runner_.start(
      "tp-checkpoint", [](void* self) { static_cast<CheckpointWriter*>(self)->run(); },
      writer.get());
  if (!started) return tl::unexpected(started.error());
  return writer;
}

Status CheckpointWriter::prepare(std::span<EmbeddingTable* const> tables, CheckpointKind kind) {
  auto number = directory_.nextNumber();
  if (!number) return tl::unexpected(number.error());
  auto removed = directory_.removeLeftovers();
  if (!removed) return tl::unexpected(removed.error());
  if (*removed > 0) {
    logLine("checkpoint %s: removed %zu files of checkpoints that were not completed",
            directory_.path().c_str(), *removed);
  }
  which_ = kind == CheckpointKind::kFull ? SavedRows::kAll : SavedRows::kChanged;
  if (which_ == SavedRows::kChanged) TP_TRY(findBase(tables));
  manifest_.number = *number;
  manifest_.id = newId();
  manifest_.which = which_;
  manifest_.created =
      static_cast<uint64_t>(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()));
  // What is not full goes to nobody: there must be more than that, or training waits for ever.
  size_t blocks = std::max<size_t>(options_.copies / kCopyBlock, kLeastCopyBlocks);
  for (EmbeddingTable* table : tables) blocks += TableSnapshot::workersOf(*table);
  copied_.allow(blocks);
  auto snapshots =
      TableSnapshot::begin(tables, which_, base_ ? base_->id : CheckpointId{0}, copied_, full_);
  if (!snapshots) return tl::unexpected(snapshots.error());
  snapshots_ = std::move(*snapshots);
  started_ = now();
  return {};
}

Status CheckpointWriter::findBase(std::span<EmbeddingTable* const> tables) {
  auto newest = directory_.newest();
  if (!newest) return tl::unexpected(newest.error());
  if (*newest == 0) {
    return tidepool::fail(ErrorCode::kNotFound,
                          "%s has no checkpoint that an incremental one could follow; make a full "
                          "one first",
                          directory_.path().c_str());
  }
  auto base = directory_.load(*newest);
  if (!base) return tl::unexpected(base.error());
  for (const EmbeddingTable* table : tables) {
    if (base->find(table->options().name) != nullptr) continue;
    return tidepool::fail(ErrorCode::kConflict,
                          "table %s is not in the newest checkpoint of %s; make a full one",
                          table->options().name.c_str(), directory_.path().c_str());
  }
  base_ = std::move(*base);
  return {};
}

CheckpointWriter::~CheckpointWriter() {
  cancel();
  runner_.join();
}

void CheckpointWriter::cancel() { cancelled_.store(true, std::memory_order_relaxed); }

void CheckpointWriter::fail(const Error& error) {
  MutexLock lock(mutex_);
  if (error_) return;
  error_ = error;
  // Training goes on without keeping anything.
  copied_.close();
  scanned_.close();
}

Status CheckpointWriter::failure() {
  if (cancelled_.load(std::memory_order_relaxed)) {
    fail(Error::make(ErrorCode::kConflict, "checkpoint %llu was cancelled",
                     static_cast<unsigned long long>(number())));
  }
  MutexLock lock(mutex_);
  return error_ ? tl::unexpected(*error_) : Status();
}

RowFileHeader CheckpointWriter::headerOf(const TableSnapshot& snapshot) const {
  const TableOptions& options = snapshot.options();
  RowFileHeader header;
  header.number = manifest_.number;
  header.id = manifest_.id;
  header.which = which_;
  header.table = options.name;
  header.rows = snapshot.rows();
  header.free = snapshot.rows() - snapshot.live();
  header.tracked = options.tracked;
  header.capacity = options.rows;
  header.step = snapshot.step();
  header.ids = options.ids;
  header.format = options.format;
  header.initializer = options.initializer;
  header.rates = options.step;
  return header;
}

Status CheckpointWriter::createFiles() {
  for (size_t i = 0; i < snapshots_.size(); ++i) {
    auto file = RowFileWriter::create(
        directory_, CheckpointDirectory::rowsName(manifest_.number, i), headerOf(*snapshots_[i]));
    if (!file) return tl::unexpected(file.error());
    files_.push_back(std::move(*file));
  }
  return {};
}

/// A thread's work: until the queue is closed and empty, blocks go to their files, or after a
/// failure just back.
void CheckpointWriter::writeBlocks() {
  while (RowBlock* const block = full_.pop()) {
    Status status = failure();
    if (status) status = files_[block->table]->append(*block);
    if (status && !block->removed) {
      rows_.fetch_add(block->rows.size(), std::memory_order_relaxed);
      bytes_.fetch_add(block->rows.size() * snapshots_[block->table]->options().format.rowBytes(),
                       std::memory_order_relaxed);
    }
    if (!status) fail(status.error());
    block->pool->giveBack(block);
  }
}

Status CheckpointWriter::takeBlocks(std::span<RowBlock*> blocks) {
  for (RowBlock*& block : blocks) {
    block = scanned_.take();
    if (block != nullptr) continue;
    for (RowBlock* taken : blocks) {
      if (taken == nullptr) break;
      scanned_.giveBack(taken);
    }
    TP_TRY(failure());
    return tidepool::fail(ErrorCode::kNoMemory, "no memory for a checkpoint's buffers");
  }
  return {};
}

void CheckpointWriter::keepPace(Bytes bytes) {
  scanned_bytes_ += bytes.value();
  if (options_.per_second == Bytes()) return;
  const double due =
      static_cast<double>(scanned_bytes_) / static_cast<double>(options_.per_second.value());
  while (static_cast<double>(now() - started_) / 1e9 < due && failure()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Status CheckpointWriter::scan(TableSnapshot& snapshot) {
  for (bool more = true; more;) {
    TP_TRY(failure());
    RowBlock* blocks[TableSnapshot::kBlocks] = {};
    TP_TRY(takeBlocks(blocks));
    auto next = snapshot.next(blocks);
    Bytes bytes;
    for (RowBlock* block : blocks) {
      bytes += Bytes(block->rows.size() * snapshot.options().format.rowBytes());
      if (next && !block->rows.empty()) {
        full_.push(block);
      } else {
        scanned_.giveBack(block);
      }
    }
    if (!next) return tl::unexpected(next.error());
    more = *next;
    keepPace(bytes);
  }
  snapshot.finishCopies();
  return snapshot.copiesLost()
             ? tidepool::fail(ErrorCode::kNoMemory, "no memory for rows that changed meanwhile")
             : Status();
}

/// What incremental checkpoints say of ids that were removed.
Status CheckpointWriter::scanRemoved(TableSnapshot& snapshot) {
  for (bool more = which_ == SavedRows::kChanged; more;) {
    TP_TRY(failure());
    RowBlock* block[1] = {};
    TP_TRY(takeBlocks(block));
    more = snapshot.nextRemoved(*block[0]);
    if (block[0]->rows.empty()) {
      scanned_.giveBack(block[0]);
    } else {
      full_.push(block[0]);
    }
  }
  return {};
}

Status CheckpointWriter::save() {
  TP_TRY(createFiles());
  const size_t writers = std::max<size_t>(options_.writers, 1);
  for (size_t i = 0; i < writers; ++i) {
    auto thread = std::make_unique<ServiceThread>();
    TP_TRY(thread->start(
        "tp-checkpoint-w", [](void* self) { static_cast<CheckpointWriter*>(self)->writeBlocks(); },
        this));
    writers_.push_back(std::move(thread));
  }
  for (const auto& snapshot : snapshots_) {
    TP_TRY(scan(*snapshot));
    TP_TRY(scanRemoved(*snapshot));
  }
  return {};
}

/// All rows are in the files: makes a checkpoint of them.
Status CheckpointWriter::complete() {
  for (size_t i = 0; i < snapshots_.size(); ++i) {
    TP_TRY(failure());
    auto file = files_[i]->finish();
    if (!file) return tl::unexpected(file.error());
    const TableOptions& options = snapshots_[i]->options();
    ManifestTable table;
    table.name = options.name;
    table.rows = snapshots_[i]->rows();
    table.capacity = options.rows;
    table.ids = options.ids;
    table.format = options.format;
    table.step = snapshots_[i]->step();
    if (base_) table.files = base_->find(options.name)->files;
    table.files.push_back(*file);
    manifest_.tables.push_back(std::move(table));
  }
  if (options_.state != nullptr) {
    auto state = writeState(directory_, manifest_.number, *options_.state);
    if (!state) return tl::unexpected(state.error());
    manifest_.state = std::move(*state);
  }
  return directory_.publish(manifest_);
}

void CheckpointWriter::removeFiles() {
  files_.clear();
  for (size_t i = 0; i < snapshots_.size(); ++i) {
    unlinkat(directory_.fd(), CheckpointDirectory::rowsName(manifest_.number, i).c_str(), 0);
  }
  unlinkat(directory_.fd(), CheckpointDirectory::stateName(manifest_.number).c_str(), 0);
}

void CheckpointWriter::run() {
  Status status = save();
  if (!status) fail(status.error());  // before waiting: nobody may be held up for it
  full_.close();
  for (const auto& writer : writers_) writer->join();
  status = failure();
  if (status) status = complete();
  if (!status) fail(status.error());
  for (const auto& snapshot : snapshots_) {
    const bool counts = status && options_.after == ChangesAfter::kCountFromThis;
    counts ? snapshot->commit(manifest_.id) : snapshot->abandon();
  }
  if (!status) removeFiles();
  files_.clear();
  if (status && options_.keep > 0) {
    const Status removed = directory_.removeOld(options_.keep);
    if (!removed) logLine("checkpoint: %s", removed.error().text());
  }
  directory_.unlock();
  MutexLock lock(mutex_);
  done_ = true;
  changed_.notifyAll();
}

Result<Manifest> CheckpointWriter::wait() {
  MutexLock lock(mutex_);
  while (!done_) changed_.wait(mutex_);
  if (error_) return tl::unexpected(*error_);
  return manifest_;
}

CheckpointProgress CheckpointWriter::progress() {
  CheckpointProgress progress;
  progress.rows = rows_.load(std::memory_order_relaxed);
  progress.bytes = Bytes(bytes_.load(std::memory_order_relaxed));
  progress.waits = copied_.waits();
  progress.waited = copied_.waited();
  for (const auto& snapshot : snapshots_) {
    progress.rows_copied += snapshot->rowsCopied();
    if (which_ == SavedRows::kAll) progress.rows_in_all += snapshot->rows();
  }
  MutexLock lock(mutex_);
  progress.done = done_;
  return progress;
}

}  // namespace tidepool
