// SPDX-License-Identifier: Apache-2.0
// Takes checkpoints of tables while training goes on: start() fixes the moment between two calls on
// the tables, threads of its own do the rest. If it fails, is cancelled or killed, there is no such
// checkpoint and the ones before are as they were. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "allocator/checkpoint/directory.h"
#include "allocator/checkpoint/row_file_writer.h"
#include "allocator/table/table_snapshot.h"
#include "runtime/base/mutex.h"
#include "runtime/base/service_thread.h"

namespace tidepool {

/// kFull: all rows. kIncremental: the rows that changed since the newest checkpoint of the
/// directory, which this process has taken or restored.
enum class CheckpointKind : uint8_t { kFull = 0, kIncremental = 1 };

/// What the next incremental checkpoint follows: this one, or, of a full one that is taken aside
/// (for an export, say), the one that it would have followed otherwise.
enum class ChangesAfter : uint8_t { kCountFromThis = 0, kCountAsBefore = 1 };

struct CheckpointOptions {
  /// Threads that check-sum and write, besides the one that reads the tables.
  size_t writers = 2;
  /// For old bytes of rows that change meanwhile. When it is full, training waits for the disk.
  Bytes copies = Bytes(64 * kMiB);
  /// Reads the tables no faster than this; 0: as fast as the disk takes it.
  Bytes per_second;
  /// Checkpoints to keep, this one counted, once it is complete; 0: all.
  size_t keep = 0;
  ChangesAfter after = ChangesAfter::kCountFromThis;
  /// The trainer's own state, kept with the checkpoint: loadState() gives it back. Null: none.
  std::shared_ptr<const std::string> state = nullptr;
};

struct CheckpointProgress {
  uint64_t rows = 0;         // handed to the disk so far
  uint64_t rows_in_all = 0;  // of a full one; 0 for others: nobody knows before the end
  Bytes bytes;
  uint64_t rows_copied = 0;  // before they changed
  uint64_t waits = 0;        // times that training waited for the disk, and how long
  Nanoseconds waited;
  bool done = false;
};

class CheckpointWriter {
 public:
  /// Begins a checkpoint of the tables, which are as they are between two calls on any of them, and
  /// must outlive it. The directory is made if there is none; leftovers of killed writers go.
  /// Errors: kInvalidArgument (no tables, two of one name), kConflict (somebody else writes there;
  /// a checkpoint of a table is under way; its changes do not count from the newest one there),
  /// kNotFound (incremental, and there is none), those of the directory.
  static Result<std::unique_ptr<CheckpointWriter>> start(std::span<EmbeddingTable* const> tables,
                                                         const std::string& directory,
                                                         CheckpointKind kind,
                                                         const CheckpointOptions& options = {});
  /// Local memory that one takes at the most, besides the tables' own.
  static Bytes memoryFor(const CheckpointOptions& options);
  /// Cancels it if it is under way.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  uint64_t number() const { return manifest_.number; }
  CheckpointProgress progress() TP_EXCLUDES(mutex_);
  /// Returns when it is over. Errors: kNoSpace (the disk is full), kIo, kConflict (cancelled), what
  /// broke a table, what reading far rows can end in.
  Result<Manifest> wait() TP_EXCLUDES(mutex_);
  /// Gives it up as soon as may be, and returns at once. Too late, it does nothing.
  void cancel();

 private:
  CheckpointWriter(CheckpointDirectory directory, const CheckpointOptions& options);
  Status prepare(std::span<EmbeddingTable* const> tables, CheckpointKind kind);
  Status findBase(std::span<EmbeddingTable* const> tables);
  RowFileHeader headerOf(const TableSnapshot& snapshot) const;

  void run();
  Status save();
  Status createFiles();
  Status scan(TableSnapshot& snapshot);
  Status scanRemoved(TableSnapshot& snapshot);
  Status takeBlocks(std::span<RowBlock*> blocks);
  void keepPace(Bytes bytes);
  Status complete();
  void writeBlocks();
  void fail(const Error& error) TP_EXCLUDES(mutex_);
  Status failure() TP_EXCLUDES(mutex_);
  void removeFiles();

  CheckpointDirectory directory_;
  const CheckpointOptions options_;
  SavedRows which_ = SavedRows::kAll;
  Manifest manifest_;
  std::optional<Manifest> base_;
  RowBlockPool scanned_, copied_;
  RowBlockQueue full_;
  std::vector<std::unique_ptr<TableSnapshot>> snapshots_;
  std::vector<std::unique_ptr<RowFileWriter>> files_;
  ServiceThread runner_;
  std::vector<std::unique_ptr<ServiceThread>> writers_;
  std::atomic<uint64_t> rows_{0}, bytes_{0};
  std::atomic<bool> cancelled_{false};
  uint64_t started_ = 0, scanned_bytes_ = 0;  // of the pace: nanoseconds, bytes
  Mutex mutex_;
  CondVar changed_;
  std::optional<Error> error_ TP_GUARDED_BY(mutex_);
  bool done_ TP_GUARDED_BY(mutex_) = false;
};

}  // namespace tidepool
