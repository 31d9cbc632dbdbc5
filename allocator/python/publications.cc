// SPDX-License-Identifier: Apache-2.0
// Publishers and published tables. Look-ups release the GIL and hold what they use, so that close()
// in another thread waits for nobody.
#include "allocator/python/publications.h"

#include <pybind11/stl.h>

#include "allocator/publish/published.h"
#include "allocator/publish/publisher.h"
#include "allocator/python/arrays.h"
#include "allocator/python/errors.h"
#include "allocator/python/gil.h"
#include "allocator/python/handles.h"

namespace tidepool::python {
namespace py = pybind11;
using namespace py::literals;
namespace {

class PublisherHandle {
 public:
  PublisherHandle(const std::vector<const TableHandle*>& tables, const std::string& path,
                  uint32_t mode)
      : path_(path), owner_(getpid()) {
    auto open = std::make_unique<Open>();
    std::vector<EmbeddingTable*> published;
    for (const TableHandle* table : tables) {
      open->tables.push_back(table->use());
      published.push_back(open->tables.back()->table.get());
    }
    auto publisher = [&] {
      const GilReleased released;
      return Publisher::open(published, path, mode);
    }();
    open->publisher = valueOf(std::move(publisher));
    open_ = ownedHere(open.release());
  }
  uint64_t publish() {
    const std::shared_ptr<Open> open = open_;
    checkUsable("publisher ", path_, open.get(), owner_);
    auto generation = [&] {
      const GilReleased released;
      return open->publisher->publish();
    }();
    return valueOf(std::move(generation));
  }
  void close() {
    std::shared_ptr<Open> gone = std::move(open_);
    open_ = nullptr;
    const GilReleased released;  // a call on a table ends first
    gone.reset();
  }
  bool closed() const { return open_ == nullptr; }

 private:
  struct Open {
    std::vector<std::shared_ptr<TableHandle::Open>> tables;
    std::unique_ptr<Publisher> publisher;  // goes first
  };
  const std::string path_;
  const pid_t owner_;
  std::shared_ptr<Open> open_;
};

class PublishedHandle {
 public:
  explicit PublishedHandle(const std::string& path) : open_(valueOf(Published::open(path))) {}

  py::list tables() const {
    py::list tables;
    for (const ImageTable& table : use()->tables()) {
      tables.append(py::dict("name"_a = table.name(), "rows"_a = table.rows(),
                             "dim"_a = table.format().dim,
                             "dtype"_a = static_cast<int>(table.format().type),
                             "ids"_a = table.ids() == IdKind::kDense ? "dense" : "hashed"));
    }
    return tables;
  }
  uint64_t generation() const { return use()->generation(); }
  uint64_t repeated() const { return use()->repeated(); }
  uint64_t publishedAt() const { return valueOf(use()->publishedAt()).value(); }
  py::tuple bags(const py::sequence& calls) const;
  py::tuple read(const std::string& table, py::handle ids, py::object out) const;
  void close() { open_ = nullptr; }
  bool closed() const { return open_ == nullptr; }

 private:
  std::shared_ptr<const Published> use() const {
    if (open_ == nullptr) raiseUnusable("the published tables are closed");
    return open_;
  }
  std::shared_ptr<const Published> open_;
};

Batch batchOf(const py::tuple& call) {
  Batch batch;
  batch.ids = integers(call[1], "ids");
  batch.offsets = integers(call[2], "offsets");
  if (batch.offsets.empty()) throw py::value_error("offsets: at least one number is needed: 0");
  if (!call[3].is_none()) {
    const std::span<const float> weights = floats(call[3], "weights");
    if (weights.size() != batch.ids.size()) {
      throw py::value_error("weights: there are " + std::to_string(weights.size()) + " for " +
                            std::to_string(batch.ids.size()) + " ids");
    }
    batch.weights = weights.data();
  }
  batch.pooling = call[4].cast<Pooling>();
  return batch;
}

void checkIds(const ImageTable& table, std::span<const int64_t> ids) {
  if (table.ids() != IdKind::kDense) return;
  const Status status = checkDenseIds(ids, table.rows(), table.name().c_str());
  if (!status) raiseIndex(status.error());
}

/// Each call: (table, ids, offsets, weights or None, pooling, out or None). The results, and the
/// generation.
py::tuple PublishedHandle::bags(const py::sequence& calls) const {
  const auto open = use();
  std::vector<Published::BagCall> table_calls;
  std::vector<py::tuple> kept;
  py::list results;
  WrittenMemory written;
  for (const py::handle each : calls) {
    const py::tuple& call = kept.emplace_back(py::reinterpret_borrow<py::tuple>(each));
    const size_t table = valueOf(open->find(call[0].cast<std::string>()));
    const Batch batch = batchOf(call);
    check(checkOffsets(batch, open->tables()[table].name().c_str()));
    checkIds(open->tables()[table], batch.ids);
    const size_t dim = open->tables()[table].format().dim;
    py::object out = call[5];
    if (out.is_none()) out = py::array_t<float>({batch.bags(), dim});
    const Matrix rows = matrix(out, "out", batch.bags(), dim, Access::kWrite);
    written.add(rows);
    table_calls.push_back({table, batch, rows.first, rows.stride});
    results.append(out);
  }
  written.merge();
  for (const Published::BagCall& call : table_calls) {
    const Batch& batch = call.batch;
    if (written.touches(batch.ids.data(), batch.ids.size_bytes()) ||
        written.touches(batch.offsets.data(), batch.offsets.size_bytes()) ||
        (batch.weights && written.touches(batch.weights, batch.ids.size() * sizeof(float)))) {
      throw py::value_error("out: its memory is that of ids, offsets or weights, too");
    }
  }
  auto generation = [&] {
    const GilReleased released;
    return open->bags(table_calls);
  }();
  return py::make_tuple(results, valueOf(std::move(generation)));
}

/// The rows, and the generation.
py::tuple PublishedHandle::read(const std::string& name, py::handle ids, py::object out) const {
  const auto open = use();
  const size_t table = valueOf(open->find(name));
  const std::span<const int64_t> numbers = integers(ids, "ids");
  checkIds(open->tables()[table], numbers);
  const size_t dim = open->tables()[table].format().dim;
  if (out.is_none()) out = py::array_t<float>({numbers.size(), dim});
  const Matrix rows = matrix(out, "out", numbers.size(), dim, Access::kWrite);
  if (rows.stride != dim) throw py::value_error("out: the array is not contiguous");
  WrittenMemory written;
  written.add(rows);
  written.merge();
  if (written.touches(numbers.data(), numbers.size_bytes())) {
    throw py::value_error("out: its memory is that of the ids, too");
  }
  auto generation = [&] {
    const GilReleased released;
    return open->readRows(table, numbers, rows.first);
  }();
  return py::make_tuple(out, valueOf(std::move(generation)));
}

}  // namespace

void bindPublications(py::module_& module) {
  py::class_<PublisherHandle>(module, "Publisher")
      .def(py::init<const std::vector<const TableHandle*>&, const std::string&, uint32_t>(),
           "tables"_a, "path"_a, "mode"_a)
      .def("publish", &PublisherHandle::publish)
      .def("close", &PublisherHandle::close)
      .def_property_readonly("closed", &PublisherHandle::closed);
  py::class_<PublishedHandle>(module, "Published")
      .def(py::init<const std::string&>(), "path"_a)
      .def("tables", &PublishedHandle::tables)
      .def("bags", &PublishedHandle::bags, "calls"_a)
      .def("read", &PublishedHandle::read, "table"_a, "ids"_a, "out"_a)
      .def("close", &PublishedHandle::close)
      .def_property_readonly("generation", &PublishedHandle::generation)
      .def_property_readonly("repeated", &PublishedHandle::repeated)
      .def_property_readonly("published_at", &PublishedHandle::publishedAt)
      .def_property_readonly("closed", &PublishedHandle::closed);
}

}  // namespace tidepool::python
