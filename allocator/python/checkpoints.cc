// SPDX-License-Identifier: Apache-2.0
// Checkpoints: beginning, restoring and verifying them, and what their manifests say as
// dictionaries.
#include "allocator/python/checkpoints.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include "allocator/checkpoint/restore.h"
#include "allocator/checkpoint/state_file.h"
#include "allocator/checkpoint/verify.h"
#include "allocator/python/errors.h"
#include "allocator/python/gil.h"

namespace tidepool::python {
namespace py = pybind11;
using namespace py::literals;
namespace {

const char* kindName(SavedRows which) { return which == SavedRows::kAll ? "full" : "incremental"; }

py::dict asDict(const Manifest& manifest) {
  py::list tables;
  uint64_t bytes = manifest.state ? manifest.state->size.value() : 0;
  for (const ManifestTable& table : manifest.tables) {
    for (const ManifestFile& file : table.files) bytes += file.size.value();
    tables.append(py::dict("name"_a = table.name, "rows"_a = table.rows,
                           "capacity"_a = table.capacity,
                           "ids"_a = table.ids == IdKind::kDense ? "dense" : "hashed",
                           "format"_a = formatName(table.format), "steps"_a = table.step,
                           "files"_a = table.files.size()));
  }
  return py::dict("number"_a = manifest.number, "kind"_a = kindName(manifest.which),
                  "created"_a = manifest.created, "bytes"_a = bytes,
                  "has_state"_a = manifest.state.has_value(), "tables"_a = tables);
}

py::dict asDict(const CheckpointReport& report) {
  py::object manifest = py::none();
  if (report.manifest) manifest = asDict(*report.manifest);
  return py::dict("number"_a = report.number, "manifest"_a = manifest,
                  "problems"_a = report.problems, "rows"_a = report.rows,
                  "bytes"_a = report.bytes.value());
}

std::unique_ptr<CheckpointHandle> saveTables(const std::vector<const TableHandle*>& tables,
                                             const std::string& directory, CheckpointKind kind,
                                             const CheckpointOptions& options) {
  auto open = std::make_unique<CheckpointHandle::Open>();
  std::vector<EmbeddingTable*> saved;
  for (const TableHandle* table : tables) {
    open->tables.push_back(table->use());
    saved.push_back(open->tables.back()->table.get());
  }
  auto writer = [&] {
    const GilReleased released;
    return CheckpointWriter::start(saved, directory, kind, options);
  }();
  open->writer = valueOf(std::move(writer));
  return std::make_unique<CheckpointHandle>(ownedHere(open.release()));
}

/// Each part: (table, saved name or "", first, count or None, to).
py::dict restore(const std::string& directory, const py::sequence& parts, uint64_t number,
                 bool weights_only) {
  std::vector<std::shared_ptr<TableHandle::Open>> tables;
  std::vector<RestorePart> table_parts;
  for (const py::handle each : parts) {
    const auto part = py::reinterpret_borrow<py::tuple>(each);
    tables.push_back(part[0].cast<const TableHandle&>().use());
    RestorePart& to = table_parts.emplace_back();
    to.table = tables.back()->table.get();
    to.saved = part[1].cast<std::string>();
    to.first = part[2].cast<RowNumber>();
    if (!part[3].is_none()) to.count = part[3].cast<RowNumber>();
    to.to = part[4].cast<RowNumber>();
    to.weights_only = weights_only;
  }
  if (tables.empty()) throw py::value_error("tables: at least one is needed");
  auto manifest = [&] {
    const GilReleased released;
    return restoreTables(directory, table_parts, tables.front()->space->workers(), number);
  }();
  return asDict(valueOf(std::move(manifest)));
}

py::dict verify(const std::string& directory, uint64_t number, size_t threads) {
  auto report = [&] {
    const GilReleased released;
    Workers workers(threads);
    return verifyCheckpoint(directory, workers, number);
  }();
  return asDict(valueOf(std::move(report)));
}

py::list list(const std::string& directory) {
  py::list reports;
  for (const CheckpointReport& report : valueOf(listCheckpoints(directory))) {
    reports.append(asDict(report));
  }
  return reports;
}

py::bytes state(const std::string& directory, uint64_t number) {
  auto bytes = [&] {
    const GilReleased released;
    return loadState(directory, number);
  }();
  return py::bytes(valueOf(std::move(bytes)));
}

}  // namespace

CheckpointHandle::CheckpointHandle(std::shared_ptr<Open> open)
    : owner_(getpid()), open_(std::move(open)) {}

CheckpointHandle::Open& CheckpointHandle::use() const {
  checkUsable("the checkpoint", "", open_.get(), owner_);
  return *open_;
}

uint64_t CheckpointHandle::number() const { return use().writer->number(); }

py::dict CheckpointHandle::wait() {
  Open& open = use();
  auto manifest = [&] {
    const GilReleased released;
    return open.writer->wait();
  }();
  return asDict(valueOf(std::move(manifest)));
}

py::dict CheckpointHandle::progress() {
  const CheckpointProgress now = use().writer->progress();
  return py::dict(
      "rows"_a = now.rows, "rows_in_all"_a = now.rows_in_all, "bytes"_a = now.bytes.value(),
      "rows_copied"_a = now.rows_copied, "waits"_a = now.waits,
      "waited_seconds"_a = static_cast<double>(now.waited.value()) / 1e9, "done"_a = now.done);
}

void CheckpointHandle::cancel() { use().writer->cancel(); }

void bindCheckpoints(py::module_& module) {
  py::enum_<CheckpointKind>(module, "CheckpointKind")
      .value("full", CheckpointKind::kFull)
      .value("incremental", CheckpointKind::kIncremental);
  py::enum_<ChangesAfter>(module, "ChangesAfter")
      .value("count_from_this", ChangesAfter::kCountFromThis)
      .value("count_as_before", ChangesAfter::kCountAsBefore);
  using Options = CheckpointOptions;
  py::class_<Options>(module, "CheckpointOptions")
      .def(py::init<>())
      .def_readwrite("keep", &Options::keep)
      .def_readwrite("writers", &Options::writers)
      .def_readwrite("after", &Options::after)
      .def(
          "set_copies", [](Options& self, uint64_t bytes) { self.copies = Bytes(bytes); },
          "bytes"_a)
      .def(
          "set_rate", [](Options& self, uint64_t bytes) { self.per_second = Bytes(bytes); },
          "bytes"_a)
      .def(
          "set_state",
          [](Options& self, const py::bytes& state) {
            self.state = std::make_shared<const std::string>(state);
          },
          "state"_a);
  py::class_<CheckpointHandle>(module, "Checkpoint")
      .def("wait", &CheckpointHandle::wait)
      .def("progress", &CheckpointHandle::progress)
      .def("cancel", &CheckpointHandle::cancel)
      .def_property_readonly("number", &CheckpointHandle::number);
  module.def("save", &saveTables, "tables"_a, "directory"_a, "kind"_a, "options"_a);
  module.def("restore", &restore, "directory"_a, "parts"_a, "number"_a, "weights_only"_a);
  module.def("verify", &verify, "directory"_a, "number"_a, "threads"_a);
  module.def("checkpoints", &list, "directory"_a);
  module.def("load_state", &state, "directory"_a, "number"_a);
}

}  // namespace tidepool::python
