// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: steps of the optimizer. A batch is ordered by row first; then every row that
// occurs takes one step with the sum of its gradients, in whichever thread.
#include <algorithm>
#include <cstring>

#include "allocator/table/table.h"
#include "allocator/table/table_locks.h"
#include "allocator/table/table_scratch.h"
#include "allocator/table/visit_rows.h"

namespace tidepool {
namespace {

constexpr size_t kTaskRows = 4 * kPieceRows;

}  // namespace

/// For the sum of a row's gradients: the calling thread's.
float* EmbeddingTable::sumBuffer() const {
  scratch().sum.resize(format_.dim);
  return scratch().sum.data();
}

void EmbeddingTable::updateInPlace(size_t first, size_t end, size_t worker) {
  float* const sum = sumBuffer();
  const auto apply = [&](size_t i, std::byte* row)
                         TP_LOCKS_OF_CALLER { step_.apply(first + i, row, sum); };
  visitInPlace(step_.rows().subspan(first, end - first), After::kChanged, worker, apply);
}

Status EmbeddingTable::updateFetched() {
  float* const sum = sumBuffer();
  const auto apply = [&](size_t i, std::byte* row) TP_LOCKS_OF_CALLER { step_.apply(i, row, sum); };
  return visitFetched(step_.rows(), After::kChanged, apply);
}

Status EmbeddingTable::prepareUpdate(const UpdateCall& call) {
  TP_TRY(usable());
  std::vector<uint32_t> without;  // not admitted yet: nobody learns what these are to become
  auto rows = madeRows(ids_.forStep(call.batch.ids, without));
  if (!rows) return tl::unexpected(rows.error());
  step_.begin({call.batch, call.gradients, call.stride}, *rows, without);
  counts_.lookups += step_.rows().size();
  return {};
}

/// One call, with the workers' help.
Status EmbeddingTable::updateOne(const UpdateCall& call, Workers& workers) {
  TP_TRY(prepareUpdate(call));
  const size_t count = step_.rows().size();
  workers.run((count + kTaskRows - 1) / kTaskRows,
              [&](size_t task, size_t worker) TP_LOCKS_OF_CALLER {
                updateInPlace(task * kTaskRows, std::min(count, (task + 1) * kTaskRows), worker);
              });
  if (cache_) admitMissed(After::kChanged);
  return {};
}

Status EmbeddingTable::updateAlone(const UpdateCall& call) {
  TP_TRY(prepareUpdate(call));
  if (fetches()) {
    const Status status = updateFetched();
    return status ? status : broken(status.error());
  }
  updateInPlace(0, step_.rows().size(), 0);
  if (cache_) admitMissed(After::kChanged);
  return {};
}

Status EmbeddingTable::updates(std::span<const UpdateCall> calls, Workers& workers) {
  TP_TRY(checkArguments(calls, workers));
  Locks locks(calls);
  const auto tables = locks.tables();
  // Enough tables to go round: a table a worker. A few: all workers on one after the other.
  if (tables.size() < workers.threads()) {
    for (const UpdateCall& call : calls) {
      TP_TRY(call.table->fetches() ? call.table->updateAlone(call)
                                   : call.table->updateOne(call, workers));
      TP_TRY(call.table->intact());
    }
    return {};
  }
  std::vector<Status> statuses(tables.size());
  const auto perform = [&](size_t t, size_t) TP_LOCKS_OF_CALLER {
    for (const UpdateCall& call : calls) {
      if (call.table == tables[t] && statuses[t]) statuses[t] = call.table->updateAlone(call);
    }
  };
  uint64_t work = 0;
  bool fetches = false;  // as when rows are looked up
  for (const UpdateCall& call : calls) {
    work += call.batch.ids.size();
    fetches = fetches || call.table->fetches();
  }
  workers.run(tables.size(), perform, fetches ? Workers::kMuchWork : work);
  for (const Status& status : statuses) TP_TRY(status);
  for (const EmbeddingTable* table : tables) TP_TRY(table->intact());
  return {};
}

}  // namespace tidepool
