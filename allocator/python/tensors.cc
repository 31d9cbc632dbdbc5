// SPDX-License-Identifier: Apache-2.0
// Tensors: who may use a store, whose memory is borrowed for how long, and the module's classes.
#include "allocator/python/tensors.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "allocator/python/errors.h"
#include "allocator/python/gil.h"
#include "runtime/base/clock.h"

namespace tidepool::python {
namespace py = pybind11;
using namespace py::literals;
namespace {

/// The memory of an array of bytes that tensors.py made: one dimension, without gaps.
std::span<std::byte> bytesOf(const py::object& object) {
  auto array = py::cast<py::array>(object);
  if (array.dtype().kind() != 'u' || array.itemsize() != 1 || array.ndim() != 1 ||
      (array.size() > 1 && array.strides(0) != 1)) {
    throw py::value_error("an array of bytes without gaps is needed");
  }
  // Who writes to it has asked for that.
  return {static_cast<std::byte*>(const_cast<void*>(array.data())),
          static_cast<size_t>(array.size())};
}

}  // namespace

void KeptArrays::keep(std::shared_ptr<TensorTransfer> transfer, py::object array) {
  sweep();
  kept_.emplace_back(std::move(transfer), std::move(array));
}

void KeptArrays::sweep() {
  // Letting go of an array can run any code, this function's callers included.
  std::vector<py::object> gone;
  for (auto& [transfer, array] : kept_) {
    if (transfer->over()) gone.push_back(std::exchange(array, py::object()));
  }
  std::erase_if(kept_, [](const auto& each) { return !each.second; });
}

TransferHandle::TransferHandle(std::shared_ptr<TensorTransfer> transfer, py::object array,
                               std::shared_ptr<KeptArrays> kept)
    : owner_(getpid()),
      transfer_(std::move(transfer)),
      array_(std::move(array)),
      kept_(std::move(kept)) {}

TransferHandle::~TransferHandle() {
  // In a child of fork() nobody uses the memory.
  if (array_ && getpid() == owner_ && !transfer_->over()) {
    kept_->keep(std::move(transfer_), std::move(array_));
  }
}

void TransferHandle::checkOwner() const {
  if (getpid() == owner_) return;
  raiseUnusable(("the transfer belongs to process " + std::to_string(owner_) +
                 " that began it; this one (" + std::to_string(getpid()) + ") cannot wait for it")
                    .c_str());
}

bool TransferHandle::done() const {
  checkOwner();
  return transfer_->over();
}

bool TransferHandle::wait(std::optional<double> seconds) {
  checkOwner();
  std::optional<Nanoseconds> timeout;
  if (seconds) timeout = Nanoseconds(static_cast<uint64_t>(std::clamp(*seconds, 0.0, 1e9) * 1e9));
  MonotonicClock clock;
  const Nanoseconds start = clock.now();
  for (;;) {
    std::optional<Nanoseconds> left = timeout;
    if (timeout) left = *timeout - std::min(*timeout, clock.now() - start);
    const auto waited = [&] {
      const GilReleased released;
      return transfer_->wait(left);
    }();
    switch (valueOf(waited)) {
      case TensorTransfer::Waited::kOver:
        array_ = py::object();
        return true;
      case TensorTransfer::Waited::kTimedOut:
        return false;
      case TensorTransfer::Waited::kInterrupted:
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  }
}

void TransferHandle::check() {
  checkOwner();
  if (!transfer_->over()) throw py::value_error("the transfer is not over");
  array_ = py::object();
  python::check(transfer_->outcome());
}

void TransferHandle::tell(const std::shared_ptr<DoneQueue>& queue, uint64_t token) {
  checkOwner();
  transfer_->tell(queue, token);
}

std::unique_ptr<TransferHandle> ValueHandle::get(const py::object& out) const {
  kept_->sweep();
  auto transfer = valueOf(pinned_->open->store->get(pinned_->value, bytesOf(out)));
  return std::make_unique<TransferHandle>(std::move(transfer), out, kept_);
}

TensorsHandle::TensorsHandle(const SpaceHandle& space, size_t tier, uint64_t limit, size_t threads,
                             TensorChecksums checksums)
    : owner_(getpid()) {
  std::shared_ptr<TableSpace> shared = space.use();
  TensorStoreOptions options;
  if (limit != 0) options.limit = Bytes(limit);
  options.threads = threads;
  options.checksums = checksums;
  auto store = [&]() -> Result<std::unique_ptr<TensorStore>> {
    const GilReleased released;
    auto far = shared->farTier(tier);
    if (!far) return tl::unexpected(far.error());
    return TensorStore::create(**far, options);
  }();
  open_ = ownedHere(new OpenTensors{std::move(shared), valueOf(std::move(store))});
}

std::shared_ptr<OpenTensors> TensorsHandle::use() const {
  checkUsable("the tensor store", "", open_.get(), owner_);
  kept_->sweep();
  return open_;
}

std::unique_ptr<TransferHandle> TensorsHandle::put(const std::string& name,
                                                   const std::string& description,
                                                   const py::object& bytes) {
  auto transfer = valueOf(use()->store->put(name, description, bytesOf(bytes)));
  return std::make_unique<TransferHandle>(std::move(transfer), bytes, kept_);
}

std::unique_ptr<ValueHandle> TensorsHandle::find(const std::string& name) {
  std::shared_ptr<OpenTensors> open = use();
  auto value = valueOf(open->store->find(name));
  return std::make_unique<ValueHandle>(
      ownedHere(new ValueHandle::Pinned{std::move(open), std::move(value)}), kept_);
}

void TensorsHandle::remove(const std::string& name) { check(use()->store->remove(name)); }
std::vector<std::string> TensorsHandle::names() { return use()->store->names(); }
void TensorsHandle::trim() {
  const std::shared_ptr<OpenTensors> open = use();
  const GilReleased released;
  open->store->trim();
}

py::dict TensorsHandle::counts() {
  const TensorStoreCounts counts = use()->store->counts();
  return py::dict("tensors"_a = counts.tensors, "stored_bytes"_a = counts.stored.value(),
                  "used_bytes"_a = counts.used.value(), "held_bytes"_a = counts.held.value(),
                  "under_way"_a = counts.under_way, "puts"_a = counts.puts, "gets"_a = counts.gets,
                  "failures"_a = counts.failures, "put_bytes"_a = counts.put.value(),
                  "got_bytes"_a = counts.got.value());
}

void TensorsHandle::close() {
  std::shared_ptr<OpenTensors> open = std::exchange(open_, nullptr);
  if (open == nullptr || getpid() != owner_) return;
  {
    const GilReleased released;
    open->store->drain();
    open.reset();
  }
  kept_->sweep();
}

void bindTensors(py::module_& module) {
  py::class_<DoneQueue, std::shared_ptr<DoneQueue>>(module, "DoneQueue")
      .def(py::init([] { return valueOf(DoneQueue::create()); }))
      .def("fileno", &DoneQueue::fd)
      .def("take", &DoneQueue::take);
  py::enum_<TensorChecksums>(module, "TensorChecksums")
      .value("none", TensorChecksums::kNone)
      .value("every_piece", TensorChecksums::kEveryPiece);
  py::class_<TransferHandle>(module, "Transfer")
      .def("done", &TransferHandle::done)
      .def("wait", &TransferHandle::wait, "seconds"_a)
      .def("check", &TransferHandle::check)
      .def("tell", &TransferHandle::tell, "queue"_a, "token"_a);
  py::class_<ValueHandle>(module, "TensorValue")
      .def("get", &ValueHandle::get, "out"_a)
      .def_property_readonly("description", &ValueHandle::description)
      .def_property_readonly("bytes", &ValueHandle::bytes);
  py::class_<TensorsHandle>(module, "TensorStore")
      .def(py::init<const SpaceHandle&, size_t, uint64_t, size_t, TensorChecksums>(), "space"_a,
           "tier"_a, "limit"_a, "threads"_a, "checksums"_a)
      .def("put", &TensorsHandle::put, "name"_a, "description"_a, "bytes"_a)
      .def("find", &TensorsHandle::find, "name"_a)
      .def("remove", &TensorsHandle::remove, "name"_a)
      .def("names", &TensorsHandle::names)
      .def("counts", &TensorsHandle::counts)
      .def("trim", &TensorsHandle::trim)
      .def("close", &TensorsHandle::close)
      .def_property_readonly("closed", &TensorsHandle::closed);
}

}  // namespace tidepool::python
