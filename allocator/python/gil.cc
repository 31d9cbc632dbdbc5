// SPDX-License-Identifier: Apache-2.0
// GilReleased. Before Python 3.14 the interpreter ends threads that ask for its lock when it is
// over, by pthread_exit(). That unwinds the stack as an exception does, and must not leave a
// destructor: the process would be aborted. It stops here, with nothing of the caller's undone.
#include "allocator/python/gil.h"

#include <cxxabi.h>
#include <unistd.h>

namespace tidepool::python {
namespace {

void restore(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

}  // namespace

GilReleased::~GilReleased() { restore(state_); }

}  // namespace tidepool::python
