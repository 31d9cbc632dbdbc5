// SPDX-License-Identifier: Apache-2.0
// Raising what tidepool/errors.py makes of a code and a text.
#include "allocator/python/errors.h"

namespace tidepool::python {
namespace py = pybind11;
namespace {

[[noreturn]] void raiseMade(const char* maker, int code, int os_error, const char* text) {
  const py::object made =
      py::module_::import("tidepool.errors").attr(maker)(code, os_error, py::str(text));
  PyErr_SetObject(py::type::handle_of(made).ptr(), made.ptr());
  throw py::error_already_set();
}

}  // namespace

void raise(const Error& error) {
  raiseMade("_of_code", static_cast<int>(error.code()), error.osError(), error.text());
}

void raiseIndex(const Error& error) {
  raiseMade("_of_index", static_cast<int>(error.code()), error.osError(), error.text());
}

void raiseUnusable(const char* text) {
  raiseMade("_of_use", static_cast<int>(ErrorCode::kInvalidArgument), 0, text);
}

}  // namespace tidepool::python
