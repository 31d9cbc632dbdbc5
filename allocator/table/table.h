// SPDX-License-Identifier: Apache-2.0
// An embedding table: rows of numbers looked up, pooled and updated in batches. Rows have homes in
// one tier; the hot ones of a far tier are in DRAM slots. Results are the same, bit for bit,
// whatever the tier, the budget and the number of threads. Thread-safe: calls on one table take
// turns. A call that fails on its arguments has changed nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "allocator/fabric/rows_keeper.h"
#include "allocator/kernels/kernels.h"
#include "allocator/table/announced_batches.h"
#include "allocator/table/backing_store.h"
#include "allocator/table/batch.h"
#include "allocator/table/batch_step.h"
#include "allocator/table/dram_plan.h"
#include "allocator/table/first_values.h"
#include "allocator/table/listed_table.h"
#include "allocator/table/live_curve.h"
#include "allocator/table/prefetch_buffer.h"
#include "allocator/table/row_cache.h"
#include "allocator/table/row_changes.h"
#include "allocator/table/row_sink.h"
#include "allocator/table/staged_rows.h"
#include "allocator/table/table_ids.h"
#include "allocator/table/table_options.h"
#include "allocator/table/workers.h"
#include "runtime/base/atomic_wait.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"

namespace tidepool {

/// Counts since the table was made. Rows looked up = hits + in_place + fetched + (the same row
/// twice in what was fetched for one call).
struct TableCounts {
  uint64_t lookups = 0;
  uint64_t hits = 0;        // in a slot, or read ahead
  uint64_t in_place = 0;    // read in a direct tier
  uint64_t fetched = 0;     // rows that a call had to wait for
  uint64_t prefetched = 0;  // rows read ahead of a call
  uint64_t unwritten = 0;   // rows read, fetched or prefetched, that were made: never written
  uint64_t inserted = 0;    // rows of hashed ids that came into being
  uint64_t removed = 0;     // rows of hashed ids that were given up
  uint64_t evictions = 0;
  uint64_t written_back = 0;
  uint64_t steps = 0;  // updates
  Bytes dram;          // slots, metadata and buffers
  Bytes metadata;
};

class SharedBudget;

class EmbeddingTable final : private RowsKeeper {
 public:
  /// Rows begin as the initializer says. `backing` must have room for options.rows rows of the
  /// format; `workers` outlives the table. Errors: kInvalidArgument, kNoMemory, those of writing to
  /// the backing store.
  static Result<std::unique_ptr<EmbeddingTable>> create(const TableOptions& options,
                                                        std::unique_ptr<BackingStore> backing,
                                                        Workers& workers) {
    return createIn(nullptr, options, std::move(backing), workers);
  }
  /// Whether the options can be those of a table. Errors: kInvalidArgument.
  static Status check(const TableOptions& options);
  ~EmbeddingTable() override;
  EmbeddingTable(const EmbeddingTable&) = delete;
  EmbeddingTable& operator=(const EmbeddingTable&) = delete;

  /// One table's part of a call.
  struct BagCall {
    EmbeddingTable* table;
    Batch batch;
    float* out;         // bags x dim
    size_t out_stride;  // floats from one bag's result to the next
  };
  /// Pools the rows of every bag, of several tables at once; empty bags give zeros. Errors:
  /// kInvalidArgument and kNoSpace (a table with hashed ids is full) before anything is done;
  /// kLost, kUnreachable, kTimedOut when far rows cannot be had: outputs are undefined then.
  static Status bags(std::span<const BagCall> calls, Workers& workers) TP_LOCKS_MANY;

  /// One table's part of a step: the gradient of every bag's result.
  struct UpdateCall {
    EmbeddingTable* table;
    Batch batch;
    const float* gradients;  // bags x dim
    size_t stride;           // floats from one bag's gradient to the next
  };
  /// One step of each table's optimizer. The gradients of all look-ups of a row are added up in the
  /// order of the batch first, so a row takes one step however often it occurs. Errors: as bags();
  /// after kLost, kUnreachable or kTimedOut some rows may have taken the step, and the table can
  /// only be closed or restored.
  static Status updates(std::span<const UpdateCall> calls, Workers& workers) TP_LOCKS_MANY;

  /// The rows of the ids as float32, `dim` numbers each, one after the other. Errors: as bags(),
  /// and kNotFound for a hashed id without a row, naming it: nothing comes into being.
  Status readRows(std::span<const int64_t> ids, float* out) TP_EXCLUDES(mutex_);
  /// Overwrites elements; optimizer state begins anew. Hashed ids come into being. Errors: as
  /// bags().
  Status writeRows(std::span<const int64_t> ids, const float* in) TP_EXCLUDES(mutex_);

  /// The same as parts of training: rows that are looked up often get a place in DRAM, and those of
  /// a fetch tier that a gather has brought in last are there for the scatter that follows.
  Status gatherRows(std::span<const int64_t> ids, float* out) TP_EXCLUDES(mutex_);
  Status scatterRows(std::span<const int64_t> ids, const float* in) TP_EXCLUDES(mutex_);

  /// The hashed ids have no rows any more, and later ones get these. What an id had learned and its
  /// optimizer's state are gone: it is as if it had never been used. Ids without a row are passed
  /// over. Announced batches that name one stay in their order, and are no longer read ahead.
  /// Returns how many rows went. Errors: kUnsupported for dense ids; what broke the table, and
  /// while a checkpoint is taken, which gets the rows as they were, those of reading them.
  Result<uint64_t> removeIds(std::span<const int64_t> ids) TP_EXCLUDES(mutex_);
  /// The same with the ids of all rows that the expiry takes. Others get their turn in between:
  /// what they use or insert meanwhile is judged as it is then. Errors: as above; kInvalidArgument
  /// if nothing is asked for, or what the table does not keep.
  Result<uint64_t> expire(const Expiry& expiry) TP_EXCLUDES(mutex_);

  /// From now on takeUnpublished() knows which rows have changed. Errors: kConflict if somebody
  /// publishes the table already, kNoMemory.
  Status startPublishing() TP_EXCLUDES(mutex_);
  void stopPublishing() TP_EXCLUDES(mutex_);
  /// Hands over the rows of several tables that have changed since this last ended well, at first
  /// all, as they are between two calls on any of the tables; calls wait meanwhile. Errors: the
  /// sink's, what broke a table, what reading far rows can end in.
  static Status takeUnpublished(std::span<EmbeddingTable* const> tables,
                                RowSink& sink) TP_LOCKS_MANY;

  /// Announces a batch. Ids that are not admitted yet are passed over. Tables that are read in
  /// place need nothing done. Of others its rows are brought in while the caller goes on, and stay
  /// until the batch is finished. Batches are used in the order in which they were announced.
  /// Errors: as bags().
  Result<BatchNumber> prefetch(std::span<const int64_t> ids) TP_EXCLUDES(mutex_);
  /// The same for several tables at once; `number` is set for each. Errors: the first one; tables
  /// whose part went well have announced it all the same.
  struct PrefetchCall {
    EmbeddingTable* table;
    std::span<const int64_t> ids;
    BatchNumber* number;
  };
  static Status prefetches(std::span<const PrefetchCall> calls, Workers& workers) TP_LOCKS_MANY;
  /// The batch, and those announced before it, were used for the last time.
  void finished(BatchNumber batch) TP_EXCLUDES(mutex_);
  /// No more batches are announced for now: all that were are finished, and the memory for rows
  /// that are read ahead is for slots until the next one. Errors: those of writing to the backing
  /// store.
  Status stopPrefetch() TP_EXCLUDES(mutex_);

  /// Sets what the next steps use. The step number stays the table's own.
  void setStep(const OptimizerStep& step) TP_EXCLUDES(mutex_);

  /// Holds the table to another budget, while it is in use: rows leave, or more may come. One
  /// whose rows are local has none. Rows of announced batches stay; dram() says what it then holds.
  /// Errors: kInvalidArgument for less than DramPlan::least(), with nothing changed; those of
  /// writing to the backing store.
  Status setDram(Bytes dram) TP_EXCLUDES(mutex_);
  /// The budget that it is held to; 0 of one whose rows are local.
  Bytes dram() TP_EXCLUDES(mutex_);
  /// The newest batch; 0 for none.
  BatchNumber announced() TP_EXCLUDES(mutex_);
  TableCounts counts() TP_EXCLUDES(mutex_);
  /// Rows that exist.
  RowNumber rows() TP_EXCLUDES(mutex_);
  /// Of hashed ids: those that have rows, in the order of these, but for the first so many; as many
  /// as there are and fit. Returns how many.
  size_t knownIds(size_t first, std::span<int64_t> out) TP_EXCLUDES(mutex_);
  const TableOptions& options() const { return options_; }
  /// Lists the table in the statistics of the run, as one of that tier, until it is destroyed.
  void listIn(const TidepoolRunApi& run, const char* tier) TP_EXCLUDES(mutex_);

 private:
  friend class SharedBudget;
  friend class TableSnapshot;
  friend class TableRestore;
  struct Task;
  struct LookUpPlan;
  struct Scratch;
  class Locks;
  static Scratch& scratch();

  /// As create(); `shared`, which outlives the table, or null: the caller takes it away again.
  static Result<std::unique_ptr<EmbeddingTable>> createIn(SharedBudget* shared,
                                                          const TableOptions& options,
                                                          std::unique_ptr<BackingStore> backing,
                                                          Workers& workers);
  EmbeddingTable(SharedBudget* shared, const TableOptions& options,
                 std::unique_ptr<BackingStore> backing, Workers& workers);
  Status setUp() TP_LOCKS_NOBODY_ELSE;
  Status setUpCache() TP_REQUIRES(mutex_);
  Status initialize();

  // Local memory, and how the table is held to it.
  Bytes heldDram() const TP_REQUIRES(mutex_);
  Status makeRoomAhead() TP_REQUIRES(mutex_);
  Result<DramPlan::Division> divide(Bytes dram) const TP_REQUIRES(mutex_);
  Status fitDram(Bytes dram) TP_REQUIRES(mutex_);
  Status makeRoomForChanges() TP_REQUIRES(mutex_);
  static Status lookUp(std::span<const BagCall> calls, Workers& workers) TP_LOCKS_MANY;
  static Status planLookUp(std::span<const BagCall> calls, const Locks& locks,
                           LookUpPlan& plan) TP_LOCKS_MANY;
  static Status carryOut(std::span<const BagCall> calls, const LookUpPlan& plan,
                         Workers& workers) TP_LOCKS_MANY;
  static void admitMissedOf(std::span<EmbeddingTable* const> tables,
                            Workers& workers) TP_LOCKS_MANY;
  TableCounts countsLocked() const TP_REQUIRES(mutex_);
  void tellCounts() TP_REQUIRES(mutex_) {
    if (listed_) listed_->setCounts(counts_.lookups, hits_.load(std::memory_order_relaxed));
  }
  void tellDram() TP_REQUIRES(mutex_);
  static void noteLookups(std::span<const BagCall> calls, Workers& workers);
  bool fetches() const { return backing_->link() != nullptr; }

  /// A lock is not fair: who trains in a loop would take it again before a waiting checkpoint has
  /// woken up.
  void letOthersIn() {
    // Pairs with the release in lockFirst().
    waitWhile(others_waiting_, 1);
  }
  /// The lock, before those who wait for it in letOthersIn().
  void lockFirst() TP_LOCKS_BY_HAND {
    others_waiting_.store(1, std::memory_order_relaxed);
    mutex_.lock();
    others_waiting_.store(0, std::memory_order_release);
    wakeWaiters(others_waiting_);
  }
  /// Errors: what broke the table before, if anything did, kLost as intact().
  Status usable() const TP_REQUIRES(mutex_);
  /// Errors: kLost when the memory of its rows was taken away. Asked at the end of calls, too: what
  /// they read may not have been the rows any more.
  Status intact() const;
  // As a keeper of rows that may be moved.
  bool hold() override;
  void letGo() override;
  /// After an error half way: rows may be in slots that were never filled.
  Status broken(const Error& error) TP_REQUIRES(mutex_);
  Status checkArguments(const Batch& batch) const;
  /// Of all calls; the first one's error.
  template <typename Call>
  static Status checkArguments(std::span<const Call> calls, Workers& workers);
  /// Rows that ids_ has found: those that it has given out on the way come into being.
  Result<std::span<const RowNumber>> madeRows(Result<std::span<const RowNumber>> found)
      TP_REQUIRES(mutex_);
  Status bringIntoBeing(RowNumber row) TP_REQUIRES(mutex_);

  // Where rows are. The first may run in several workers at once, for tables read in place.
  void addressInPlace(std::span<const RowNumber> rows, std::byte** addresses,
                      std::vector<RowNumber>& missed) TP_REQUIRES(mutex_);
  Status addressOrFetch(std::span<const RowNumber> rows, std::byte** addresses) TP_REQUIRES(mutex_);
  enum class After : uint8_t { kUnchanged, kChanged };
  size_t sampleFrom(std::span<const RowNumber> rows, size_t step) const;
  void admitMissed(After after) TP_REQUIRES(mutex_);
  bool admit(RowNumber row, After after) TP_REQUIRES(mutex_);

  /// Addresses for look-ups from `first` on, of which those that have a row are in front: puts them
  /// in their places, and what the others' rows would begin with between them, which stays until
  /// the thread's next call.
  void fillIn(const BagCall& call, const KnownRows& known, size_t first,
              std::span<std::byte*> addresses);
  void bagInPlace(const BagCall& call, const KnownRows& known, size_t first, size_t end,
                  size_t worker) TP_REQUIRES(mutex_);
  Status bagFetched(const BagCall& call, const KnownRows& known) TP_REQUIRES(mutex_);
  Result<size_t> bagAnnounced(const BagCall& call, std::span<const RowNumber> rows)
      TP_REQUIRES(mutex_);
  void addressAnnounced(const AnnouncedBatch& batch, size_t first, std::span<const RowNumber> rows,
                        std::byte** addresses) TP_REQUIRES(mutex_);
  void markChanged(Slot place) TP_REQUIRES(mutex_);
  void pool(const BagCall& call, size_t first, size_t end, const std::byte* const* addresses);

  // One step, once the batch is ordered by row.
  Status prepareUpdate(const UpdateCall& call) TP_REQUIRES(mutex_);
  float* sumBuffer() const;
  void updateInPlace(size_t first, size_t end, size_t worker) TP_REQUIRES(mutex_);
  Status updateFetched() TP_REQUIRES(mutex_);
  Status updateOne(const UpdateCall& call, Workers& workers) TP_REQUIRES(mutex_);
  Status updateAlone(const UpdateCall& call) TP_REQUIRES(mutex_);

  // Giving rows up.
  Status removeRows(std::span<const RowNumber> rows) TP_REQUIRES(mutex_);
  Status keepForCheckpoint(std::span<const RowNumber> rows) TP_REQUIRES(mutex_);

  /// The row's bytes are about to change.
  void noteChange(RowNumber row, const std::byte* bytes, size_t worker) TP_REQUIRES(mutex_) {
    changes_.beforeChange(row, bytes, worker);
    ids_.used(row, step_.number());
  }

  // Row by row.
  template <typename Act>
  Status withRows(std::span<const RowNumber> rows, After after, Act act) TP_REQUIRES(mutex_);
  Status handOver(size_t index, RowSink& sink) TP_REQUIRES(mutex_);
  void decodeRow(const std::byte* row, float* out) const { kernels_.decode(format_, row, out); }
  void overwriteRow(const float* in, std::byte* row) const;
  /// Many rows, found in pieces (visit_rows.h).
  template <typename Act>
  void visitInPlace(std::span<const RowNumber> rows, After after, size_t worker, Act act)
      TP_REQUIRES(mutex_);
  template <typename Act>
  Status visitFetched(std::span<const RowNumber> rows, After after, Act act) TP_REQUIRES(mutex_);
  template <typename Act>
  Status visit(std::span<const RowNumber> rows, After after, Act act) TP_REQUIRES(mutex_);

  // Reading ahead.
  Result<BatchNumber> prefetchLocked(std::span<const int64_t> ids) TP_LOCKS_MANY;
  Status absorb() TP_REQUIRES(mutex_);
  Status withinLink() TP_REQUIRES(mutex_);
  size_t hold(std::span<const RowNumber> rows, BatchNumber batch);
  Result<bool> planPiece(AnnouncedBatch& batch) TP_REQUIRES(mutex_);
  Status requestAhead() TP_REQUIRES(mutex_);
  void warnShort(const AnnouncedBatch& batch) TP_REQUIRES(mutex_);
  /// Places of rows that wait beside the slots, as places in general: slots count from the first
  /// on, these from the last. The other way round it is the same.
  static Slot placeAhead(PrefetchBuffer::Place place) { return kNoSlot - 1 - place; }
  /// Writes those that were changed home, as a checkpoint wants them.
  Status writeAhead() TP_REQUIRES(mutex_);
  /// Lets go of all of them. No batch is in flight.
  Status settleAhead() TP_REQUIRES(mutex_);

  SharedBudget* const shared_;  // null: the table's memory is its own
  const TableOptions options_;
  const RowFormat format_;
  const Kernels& kernels_;
  const FirstValues first_values_;
  Workers& workers_;
  std::unique_ptr<BackingStore> backing_;
  std::unique_ptr<RowCache> cache_;             // null when rows are local
  std::unique_ptr<PrefetchBuffer> prefetched_;  // these two: null when rows are read in place
  std::unique_ptr<StagedRows> staged_;
  Mutex mutex_;
  // Somebody who works beside the calls is waiting for the lock: those go behind. See
  // letOthersIn().
  std::atomic<uint32_t> others_waiting_{0};
  DramPlan plan_ TP_GUARDED_BY(mutex_);  // of a table that is not local
  Bytes dram_ TP_GUARDED_BY(mutex_);
  std::unique_ptr<LiveCurve> curve_;    // of tables that share; it has a lock of its own
  std::atomic<bool> restoring_{false};  // its lock is held for as long as that takes
  RowChanges changes_;
  TableIds ids_ TP_GUARDED_BY(mutex_);
  BatchStep step_ TP_GUARDED_BY(mutex_);
  // Look-ups without a slot, by worker; admitMissed() empties them.
  std::vector<std::vector<RowNumber>> missed_;
  AnnouncedBatches batches_ TP_GUARDED_BY(mutex_);
  bool refit_ TP_GUARDED_BY(mutex_) =
      false;  // rows read ahead have another share, as soon as none of them waits
  bool warned_short_ TP_GUARDED_BY(mutex_) = false;
  std::optional<Error> broken_ TP_GUARDED_BY(mutex_);
  std::atomic<uint64_t> hits_{0}, in_place_{0};
  TableCounts counts_ TP_GUARDED_BY(mutex_);
  std::unique_ptr<ListedTable> listed_ TP_GUARDED_BY(mutex_);  // null outside runs
};

}  // namespace tidepool
