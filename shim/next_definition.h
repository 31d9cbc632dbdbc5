// SPDX-License-Identifier: Apache-2.0
// The one way in which the shim finds the function behind one of its own: another preload's, or
// libc's. Not for signal handlers.
#pragma once

#include <dlfcn.h>

namespace tidepool {

/// Null where there is none. `Function` is its type, or deduced from what it is assigned to.
template <typename Function>
Function* nextDefinition(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

template <typename Function>
void findNextDefinition(Function*& to, const char* name) {
  to = nextDefinition<Function>(name);
}

}  // namespace tidepool
