// SPDX-License-Identifier: Apache-2.0
// Finds pthread_setspecific(), by whichever name libc gives it.
#include "shim/thread_data.h"

#include <dlfcn.h>

namespace tidepool {

// Beyond every address until it is known.
constinit uintptr_t thread_data_caller = UINTPTR_MAX;

void findThreadDataCaller() {
  if (void* found = dlsym(RTLD_NEXT, "pthread_setspecific")) {
    thread_data_caller = reinterpret_cast<uintptr_t>(found);
  }
}

}  // namespace tidepool
