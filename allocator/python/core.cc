// SPDX-License-Identifier: Apache-2.0
// The module tidepool._core: tables as the package's Python sources use them, which have the
// argument names, defaults and documents. tidepool/_core.pyi says the same for type checkers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "allocator/python/calls.h"
#include "allocator/python/checkpoints.h"
#include "allocator/python/errors.h"
#include "allocator/python/handles.h"
#include "allocator/python/openmp.h"
#include "allocator/python/publications.h"
#include "allocator/python/tensors.h"

namespace py = pybind11;
using namespace py::literals;

namespace tidepool::python {
namespace {

void bindEnums(py::module_& module) {
  py::enum_<ElementType>(module, "ElementType")
      .value("float32", ElementType::kFloat32)
      .value("float16", ElementType::kFloat16)
      .value("bfloat16", ElementType::kBfloat16)
      .value("int8", ElementType::kInt8);
  py::enum_<Optimizer>(module, "Optimizer")
      .value("sgd", Optimizer::kSgd)
      .value("momentum", Optimizer::kMomentum)
      .value("adagrad", Optimizer::kAdagrad)
      .value("rowwise_adagrad", Optimizer::kRowwiseAdagrad)
      .value("adam", Optimizer::kAdam);
  py::enum_<IdKind>(module, "IdKind")
      .value("dense", IdKind::kDense)
      .value("hashed", IdKind::kHashed);
  py::enum_<Pooling>(module, "Pooling").value("sum", Pooling::kSum).value("mean", Pooling::kMean);
  py::enum_<Initializer::Kind>(module, "InitializerKind")
      .value("zero", Initializer::Kind::kZero)
      .value("uniform", Initializer::Kind::kUniform)
      .value("normal", Initializer::Kind::kNormal);
}

void bindOptions(py::module_& module) {
  py::class_<OptimizerStep>(module, "Step")
      .def(py::init<>())
      .def_readwrite("learning_rate", &OptimizerStep::learning_rate)
      .def_readwrite("momentum", &OptimizerStep::momentum)
      .def_readwrite("beta1", &OptimizerStep::beta1)
      .def_readwrite("beta2", &OptimizerStep::beta2)
      .def_readwrite("epsilon", &OptimizerStep::epsilon)
      .def_readwrite("weight_decay", &OptimizerStep::weight_decay);
  py::class_<Initializer>(module, "Initializer")
      .def(py::init([](Initializer::Kind kind, float first, float second, uint64_t seed) {
             return Initializer{kind, first, second, seed};
           }),
           "kind"_a, "first"_a, "second"_a, "seed"_a);
  py::class_<RowFormat>(module, "RowFormat")
      .def(py::init([](ElementType type, Optimizer optimizer, uint32_t dim) {
             return RowFormat{type, optimizer, dim};
           }),
           "type"_a, "optimizer"_a, "dim"_a)
      .def_property_readonly("row_bytes", &RowFormat::stride);
  py::class_<TableOptions>(module, "TableOptions")
      .def(py::init<>())
      .def_readwrite("name", &TableOptions::name)
      .def_readwrite("rows", &TableOptions::rows)
      .def_readwrite("format", &TableOptions::format)
      .def_readwrite("ids", &TableOptions::ids)
      .def_readwrite("initializer", &TableOptions::initializer)
      .def_readwrite("step", &TableOptions::step)
      .def_readwrite("admit_after", &TableOptions::admit_after)
      .def_readwrite("remembered_ids", &TableOptions::remembered_ids)
      .def_property(
          "track", [](const TableOptions& options) { return static_cast<int>(options.tracked); },
          [](TableOptions& options, int track) {
            options.tracked = static_cast<Tracked>(track & 3);
          })
      .def_property(
          "dram_bytes", [](const TableOptions& options) { return options.dram.value(); },
          [](TableOptions& options, uint64_t bytes) { options.dram = Bytes(bytes); });
}

void bindHandles(py::module_& module) {
  py::class_<TableHandle>(module, "Table")
      .def("read", &readRows, "ids"_a, "out"_a)
      .def("write", &writeRows, "ids"_a, "values"_a)
      .def("finished", &finished, "batch"_a)
      .def("drop_announced", &dropAnnounced)
      .def("set_step", &setStep, "step"_a)
      .def("counts", &counts)
      .def("rows", &rows)
      .def("known_ids", &knownIds)
      .def("remove_ids", &removeIds, "ids"_a)
      .def("expire", &expire, "unused_for"_a, "used_fewer_than"_a)
      .def("dram", &dram)
      .def("close", &TableHandle::close)
      .def_property_readonly("closed", &TableHandle::closed);
  py::class_<SpaceHandle>(module, "Space")
      .def(py::init<const std::vector<std::string>&, size_t, double, const std::string&>(), "far"_a,
           "threads"_a, "timeout_seconds"_a, "agent"_a)
      .def("create_table", &SpaceHandle::createTable, "options"_a, "tier"_a)
      .def("least_dram", &SpaceHandle::leastDram, "options"_a, "tier"_a)
      .def("least_share", &SpaceHandle::leastShare, "options"_a, "tier"_a)
      .def("set_dram", &SpaceHandle::setDram, "bytes"_a)
      .def_property_readonly("dram", &SpaceHandle::dram)
      .def("close", &SpaceHandle::close)
      .def_property_readonly("threads", &SpaceHandle::threads)
      .def_property_readonly("closed", &SpaceHandle::closed);
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "Tidepool's embedding tables; see the package tidepool.";
  bindEnums(module);
  bindOptions(module);
  bindHandles(module);
  bindTensors(module);
  bindCheckpoints(module);
  bindPublications(module);
  module.def("bags", &bags, "calls"_a);
  module.def("updates", &updates, "calls"_a);
  module.def("prefetches", &prefetches, "calls"_a);
  module.def(
      "parse_size",
      [](const std::string& text, uint64_t whole) {
        return valueOf(parseSize(text, Bytes(whole))).value();
      },
      "text"_a, "whole"_a);
  module.def("share_openmp_threads", &shareOpenmpThreads);
  module.def("error_code_name",
             [](int code) { return errorCodeName(static_cast<ErrorCode>(code)); });
}

}  // namespace tidepool::python
