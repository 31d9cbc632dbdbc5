// SPDX-License-Identifier: Apache-2.0
// What is asked of arrays before their memory is touched.
#include "allocator/python/arrays.h"

#include <algorithm>
#include <string>

namespace tidepool::python {
namespace py = pybind11;
namespace {

std::string textOf(py::handle object) { return py::str(object).cast<std::string>(); }

/// `kind` and `size` as NumPy names them: 'i' and 8 for int64.
py::array typed(py::handle object, const char* argument, char kind, const char* name,
                py::ssize_t size) {
  if (!py::isinstance<py::array>(object)) {
    throw py::type_error(std::string(argument) + ": an array of " + name + " is needed, not " +
                         textOf(py::type::handle_of(object).attr("__name__")));
  }
  auto array = py::reinterpret_borrow<py::array>(object);
  const py::dtype type = array.dtype();
  if (type.kind() != kind || type.itemsize() != size || !type.attr("isnative").cast<bool>()) {
    throw py::type_error(std::string(argument) + ": an array of " + name + " is needed, not of " +
                         textOf(type));
  }
  if ((array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) == 0) {
    throw py::value_error(std::string(argument) + ": the array's memory is not aligned");
  }
  return array;
}

py::array typedLine(py::handle object, const char* argument, char kind, const char* name,
                    py::ssize_t size) {
  py::array array = typed(object, argument, kind, name, size);
  if (array.ndim() != 1) {
    throw py::value_error(std::string(argument) + ": one dimension is needed, not " +
                          std::to_string(array.ndim()));
  }
  if (array.size() > 1 && array.strides(0) != size) {
    throw py::value_error(std::string(argument) + ": the array is not contiguous");
  }
  return array;
}

}  // namespace

std::span<const int64_t> integers(py::handle object, const char* argument) {
  const py::array array = typedLine(object, argument, 'i', "int64", sizeof(int64_t));
  return {static_cast<const int64_t*>(array.data()), static_cast<size_t>(array.size())};
}

std::span<const float> floats(py::handle object, const char* argument) {
  const py::array array = typedLine(object, argument, 'f', "float32", sizeof(float));
  return {static_cast<const float*>(array.data()), static_cast<size_t>(array.size())};
}

Matrix matrix(py::handle object, const char* argument, size_t rows, size_t dim, Access access) {
  py::array array = typed(object, argument, 'f', "float32", sizeof(float));
  if (array.ndim() != 2 || static_cast<size_t>(array.shape(0)) != rows ||
      static_cast<size_t>(array.shape(1)) != dim) {
    throw py::value_error(std::string(argument) + ": the shape (" + std::to_string(rows) + ", " +
                          std::to_string(dim) + ") is needed, not " + textOf(array.attr("shape")));
  }
  if (access == Access::kWrite && !array.writeable()) {
    throw py::value_error(std::string(argument) + ": the array is read-only");
  }
  constexpr auto kNumber = static_cast<py::ssize_t>(sizeof(float));
  const py::ssize_t stride = rows > 1 ? array.strides(0) : static_cast<py::ssize_t>(dim) * kNumber;
  const bool side_by_side = dim <= 1 || array.strides(1) == kNumber;
  if (rows > 0 && (!side_by_side || stride % kNumber != 0 ||
                   stride < static_cast<py::ssize_t>(dim) * kNumber)) {
    throw py::value_error(std::string(argument) +
                          ": the numbers of a row do not lie side by side, or rows overlap");
  }
  // Read-only memory is read alone: Access says so.
  return {static_cast<float*>(const_cast<void*>(array.data())),
          static_cast<size_t>(stride / kNumber), rows, dim};
}

void WrittenMemory::add(const Matrix& matrix) {
  if (matrix.rows == 0) return;
  const float* const end = matrix.first + (matrix.rows - 1) * matrix.stride + matrix.dim;
  ranges_.push_back({reinterpret_cast<uintptr_t>(matrix.first), reinterpret_cast<uintptr_t>(end)});
}

void WrittenMemory::merge() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  size_t kept = 0;
  for (const Range& range : ranges_) {
    if (kept > 0 && range.first <= ranges_[kept - 1].end) {
      ranges_[kept - 1].end = std::max(ranges_[kept - 1].end, range.end);
    } else {
      ranges_[kept++] = range;
    }
  }
  ranges_.resize(kept);
}

bool WrittenMemory::touches(const void* first, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(first);
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                                      [](uintptr_t at, const Range& r) { return at < r.end; });
  return bytes > 0 && after != ranges_.end() && after->first < begin + bytes;
}

}  // namespace tidepool::python
