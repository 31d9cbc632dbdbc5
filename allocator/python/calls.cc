// SPDX-License-Identifier: Apache-2.0
// From tuples of arrays to the calls of EmbeddingTable and back.
#include "allocator/python/calls.h"

#include <string>
#include <vector>

#include "allocator/python/arrays.h"
#include "allocator/python/errors.h"
#include "allocator/python/gil.h"

namespace tidepool::python {
namespace py = pybind11;
namespace {

using Open = std::shared_ptr<TableHandle::Open>;

/// One table's part of a call, and what keeps its memory there while the GIL is released.
struct Part {
  Open open;
  Batch batch;
  Matrix matrix;
  py::tuple arguments;
  py::object out;

  explicit Part(py::handle call) : arguments(py::reinterpret_borrow<py::tuple>(call)) {
    open = arguments[0].cast<const TableHandle&>().use();
    batch.ids = integers(arguments[1], "ids");
    batch.offsets = integers(arguments[2], "offsets");
    if (batch.offsets.empty()) throw py::value_error("offsets: at least one number is needed: 0");
    if (!arguments[3].is_none()) {
      const std::span<const float> weights = floats(arguments[3], "weights");
      if (weights.size() != batch.ids.size()) {
        throw py::value_error("weights: there are " + std::to_string(weights.size()) + " for " +
                              std::to_string(batch.ids.size()) + " ids");
      }
      batch.weights = weights.data();
    }
    batch.pooling = arguments[4].cast<Pooling>();
    // Of bags(): the last argument.
    const bool inserts = arguments.size() < 7 || arguments[6].cast<bool>();
    batch.absent = inserts ? Absent::kInsert : Absent::kInitial;
  }
  EmbeddingTable& table() const { return *open->table; }
  size_t dim() const { return table().options().format.dim; }
};

void checkSameSpace(const TableHandle::Open& table, const TableHandle::Open& first) {
  if (table.space == first.space) return;
  throw py::value_error("table " + table.table->options().name +
                        " is of another space than the first table of the call");
}

std::vector<Part> partsOf(const py::sequence& calls) {
  std::vector<Part> parts;
  for (const py::handle call : calls) {
    parts.emplace_back(call);
    checkSameSpace(*parts.back().open, *parts.front().open);
  }
  return parts;
}

/// What was checked must not change under a table while another's results are written.
void checkApart(const std::vector<Part>& parts) {
  WrittenMemory written;
  for (const Part& part : parts) written.add(part.matrix);
  written.merge();
  for (const Part& part : parts) {
    const Batch& batch = part.batch;
    if (written.touches(batch.ids.data(), batch.ids.size_bytes()) ||
        written.touches(batch.offsets.data(), batch.offsets.size_bytes()) ||
        (batch.weights && written.touches(batch.weights, batch.ids.size() * sizeof(float)))) {
      throw py::value_error("out: its memory is that of ids, offsets or weights, too");
    }
  }
}

/// The table has one code for all that is wrong with arguments; Python tells ids from the rest.
[[noreturn]] void raiseFor(const Error& error, const EmbeddingTable& table, const Batch& batch) {
  const TableOptions& options = table.options();
  if (error.code() == ErrorCode::kInvalidArgument && options.ids == IdKind::kDense &&
      checkOffsets(batch, "") && !checkDenseIds(batch.ids, options.rows, "")) {
    raiseIndex(error);
  }
  raise(error);
}

/// Of several tables, the first with such an id is the one that the error is about.
void checkParts(const Status& status, const std::vector<Part>& parts) {
  if (status) return;
  for (const Part& part : parts) {
    if (!checkOffsets(part.batch, "")) break;
    if (part.table().options().ids == IdKind::kDense &&
        !checkDenseIds(part.batch.ids, part.table().options().rows, "")) {
      raiseFor(status.error(), part.table(), part.batch);
    }
  }
  raise(status.error());
}

void checkIds(const Status& status, const Open& open, std::span<const int64_t> ids) {
  if (status) return;
  const int64_t offsets[] = {0, static_cast<int64_t>(ids.size())};
  raiseFor(status.error(), *open->table, {ids, offsets});
}

}  // namespace

py::list bags(const py::sequence& calls) {
  std::vector<Part> parts = partsOf(calls);
  std::vector<EmbeddingTable::BagCall> table_calls;
  py::list results;
  for (Part& part : parts) {
    part.out = part.arguments[5];
    const size_t count = part.batch.bags();
    if (part.out.is_none()) {
      part.out = py::array_t<float>({count, part.dim()});
    }
    part.matrix = matrix(part.out, "out", count, part.dim(), Access::kWrite);
    table_calls.push_back({&part.table(), part.batch, part.matrix.first, part.matrix.stride});
    results.append(part.out);
  }
  if (parts.empty()) return results;
  checkApart(parts);
  Status status;
  {
    const GilReleased released;
    status = EmbeddingTable::bags(table_calls, parts.front().open->space->workers());
  }
  checkParts(status, parts);
  return results;
}

void updates(const py::sequence& calls) {
  std::vector<Part> parts = partsOf(calls);
  std::vector<EmbeddingTable::UpdateCall> table_calls;
  for (Part& part : parts) {
    part.matrix =
        matrix(part.arguments[5], "gradients", part.batch.bags(), part.dim(), Access::kRead);
    table_calls.push_back({&part.table(), part.batch, part.matrix.first, part.matrix.stride});
  }
  if (parts.empty()) return;
  Status status;
  {
    const GilReleased released;
    status = EmbeddingTable::updates(table_calls, parts.front().open->space->workers());
  }
  checkParts(status, parts);
}

py::array_t<int64_t> knownIds(const TableHandle& table) {
  const Open open = table.use();
  std::vector<int64_t> ids;
  {
    const GilReleased released;
    // Others may go on inserting: those that come meanwhile are left out.
    ids.resize(open->table->rows());
    ids.resize(open->table->knownIds(0, ids));
  }
  return py::array_t<int64_t>(static_cast<py::ssize_t>(ids.size()), ids.data());
}

uint64_t removeIds(const TableHandle& table, py::handle ids) {
  const Open open = table.use();
  const std::span<const int64_t> numbers = integers(ids, "ids");
  Result<uint64_t> removed = 0;
  {
    const GilReleased released;
    removed = open->table->removeIds(numbers);
  }
  if (!removed) raise(removed.error());
  return *removed;
}

uint64_t expire(const TableHandle& table, uint64_t unused_for, uint64_t used_fewer_than) {
  const Open open = table.use();
  Result<uint64_t> removed = 0;
  {
    const GilReleased released;
    removed = open->table->expire({unused_for, used_fewer_than});
  }
  if (!removed) raise(removed.error());
  return *removed;
}

py::array_t<float> readRows(const TableHandle& table, py::handle ids, py::object out) {
  const Open open = table.use();
  const std::span<const int64_t> numbers = integers(ids, "ids");
  const size_t dim = open->table->options().format.dim;
  if (out.is_none()) out = py::array_t<float>({numbers.size(), dim});
  const Matrix rows = matrix(out, "out", numbers.size(), dim, Access::kWrite);
  if (rows.stride != dim) throw py::value_error("out: the array is not contiguous");
  WrittenMemory written;
  written.add(rows);
  if (written.touches(numbers.data(), numbers.size_bytes())) {
    throw py::value_error("out: its memory is that of the ids, too");
  }
  Status status;
  {
    const GilReleased released;
    status = open->table->readRows(numbers, rows.first);
  }
  checkIds(status, open, numbers);
  return out;
}

void writeRows(const TableHandle& table, py::handle ids, py::handle values) {
  const Open open = table.use();
  const std::span<const int64_t> numbers = integers(ids, "ids");
  const size_t dim = open->table->options().format.dim;
  const Matrix rows = matrix(values, "values", numbers.size(), dim, Access::kRead);
  if (rows.stride != dim) throw py::value_error("values: the array is not contiguous");
  Status status;
  {
    const GilReleased released;
    status = open->table->writeRows(numbers, rows.first);
  }
  checkIds(status, open, numbers);
}

py::list prefetches(const py::sequence& calls) {
  std::vector<Open> tables;
  std::vector<py::tuple> kept;
  std::vector<EmbeddingTable::PrefetchCall> table_calls;
  std::vector<BatchNumber> numbers(calls.size());
  for (const py::handle call : calls) {
    kept.push_back(py::reinterpret_borrow<py::tuple>(call));
    tables.push_back(kept.back()[0].cast<const TableHandle&>().use());
    table_calls.push_back({tables.back()->table.get(), integers(kept.back()[1], "ids"),
                           &numbers[table_calls.size()]});
    checkSameSpace(*tables.back(), *tables.front());
  }
  py::list results;
  if (tables.empty()) return results;
  Status status;
  {
    const GilReleased released;
    status = EmbeddingTable::prefetches(table_calls, tables.front()->space->workers());
  }
  for (size_t i = 0; !status && i < tables.size(); ++i) {
    const TableOptions& options = tables[i]->table->options();
    if (options.ids == IdKind::kDense && !checkDenseIds(table_calls[i].ids, options.rows, "")) {
      checkIds(status, tables[i], table_calls[i].ids);
    }
  }
  check(status);
  for (const BatchNumber number : numbers) results.append(number);
  return results;
}

void finished(const TableHandle& table, BatchNumber batch) {
  const Open open = table.ifUsable();
  if (open == nullptr) return;
  const GilReleased released;
  open->table->finished(batch);
}

void dropAnnounced(const TableHandle& table) {
  const Open open = table.use();
  const GilReleased released;
  open->table->finished(open->table->announced());
}

void setStep(const TableHandle& table, const OptimizerStep& step) {
  const Open open = table.use();
  const GilReleased released;
  open->table->setStep(step);
}

RowNumber rows(const TableHandle& table) {
  const Open open = table.use();
  const GilReleased released;
  return open->table->rows();
}

uint64_t dram(const TableHandle& table) {
  const Open open = table.use();
  const GilReleased released;
  return open->table->dram().value();
}

py::dict counts(const TableHandle& table) {
  const Open open = table.use();
  const TableCounts counts = [&] {
    const GilReleased released;
    return open->table->counts();
  }();
  using namespace py::literals;
  return py::dict("lookups"_a = counts.lookups, "hits"_a = counts.hits,
                  "in_place"_a = counts.in_place, "fetched"_a = counts.fetched,
                  "prefetched"_a = counts.prefetched, "inserted"_a = counts.inserted,
                  "removed"_a = counts.removed, "unwritten"_a = counts.unwritten,
                  "evictions"_a = counts.evictions, "written_back"_a = counts.written_back,
                  "steps"_a = counts.steps, "dram_bytes"_a = counts.dram.value(),
                  "metadata_bytes"_a = counts.metadata.value());
}

}  // namespace tidepool::python
