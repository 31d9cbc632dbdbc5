// SPDX-License-Identifier: Apache-2.0
// Gives the interpreter's lock up for as long as it lives, as pybind11's gil_scoped_release does,
// but for the end of the interpreter: a thread that cannot have the lock again then sleeps until
// the process is gone.
#pragma once

#include <pybind11/pybind11.h>

namespace tidepool::python {

class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased();
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace tidepool::python
