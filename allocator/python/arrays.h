// SPDX-License-Identifier: Apache-2.0
// NumPy arrays as the plain memory that tables work on, never copied. Results are borrowed: the
// array has to outlive them. Wrong types raise TypeError, wrong shapes and layouts ValueError,
// naming the argument. All functions need the GIL.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tidepool::python {

/// One dimension of int64, without gaps.
std::span<const int64_t> integers(pybind11::handle object, const char* argument);
/// One dimension of float32, without gaps.
std::span<const float> floats(pybind11::handle object, const char* argument);

/// Rows of float32; the numbers of a row lie side by side, rows may have gaps between them.
struct Matrix {
  float* first = nullptr;
  size_t stride = 0;  // numbers from one row to the next
  size_t rows = 0;
  size_t dim = 0;
};
/// Whether the table reads the rows or writes them.
enum class Access : uint8_t { kRead, kWrite };
Matrix matrix(pybind11::handle object, const char* argument, size_t rows, size_t dim,
              Access access);

/// Memory that a call writes: what it reads must lie elsewhere, as it was checked before.
class WrittenMemory {
 public:
  void add(const Matrix& matrix);
  /// Once all is added, before touches().
  void merge();
  /// Whether any of the bytes are written.
  bool touches(const void* first, size_t bytes) const;

 private:
  struct Range {
    uintptr_t first, end;
  };
  std::vector<Range> ranges_;  // merged: in order, apart
};

}  // namespace tidepool::python
