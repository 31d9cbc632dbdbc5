// SPDX-License-Identifier: Apache-2.0
// Look-ups, steps and rows of tables with NumPy arrays as arguments. The GIL is released while a
// table works; arrays must not be changed by others meanwhile. See tidepool/table.py for what the
// arguments mean.
#pragma once

#include <pybind11/numpy.h>

#include "allocator/python/handles.h"

namespace tidepool::python {

/// Each call: (table, ids, offsets, weights or None, Pooling, out or None). The arrays with the
/// results, in that order.
pybind11::list bags(const pybind11::sequence& calls);
/// Each call: (table, ids, offsets, weights or None, Pooling, gradients).
void updates(const pybind11::sequence& calls);

/// The hashed ids that have rows, in the order in which they got them.
pybind11::array_t<int64_t> knownIds(const TableHandle& table);
uint64_t removeIds(const TableHandle& table, pybind11::handle ids);
uint64_t expire(const TableHandle& table, uint64_t unused_for, uint64_t used_fewer_than);
pybind11::array_t<float> readRows(const TableHandle& table, pybind11::handle ids,
                                  pybind11::object out);
void writeRows(const TableHandle& table, pybind11::handle ids, pybind11::handle values);
/// Each call: (table, ids). The batches' numbers, in that order.
pybind11::list prefetches(const pybind11::sequence& calls);
/// Nothing is done to one that is closed, or another process's: nothing is kept for it. Raises
/// nothing: tokens end when even modules are gone.
void finished(const TableHandle& table, BatchNumber batch);
/// All batches that are announced by now are finished.
void dropAnnounced(const TableHandle& table);
void setStep(const TableHandle& table, const OptimizerStep& step);
RowNumber rows(const TableHandle& table);
/// Bytes of local memory that it is held to; 0 of one whose rows are local.
uint64_t dram(const TableHandle& table);
pybind11::dict counts(const TableHandle& table);

}  // namespace tidepool::python
