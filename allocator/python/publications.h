// SPDX-License-Identifier: Apache-2.0
// Publishers and published tables as Python holds them: tables that have a publisher stay until it
// is closed, even if they are. A publisher belongs to the process that made it. All functions need
// the GIL.
#pragma once

#include <pybind11/pybind11.h>

namespace tidepool::python {

void bindPublications(pybind11::module_& module);

}  // namespace tidepool::python
