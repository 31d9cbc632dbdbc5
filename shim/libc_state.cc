// SPDX-License-Identifier: Apache-2.0
// Finds the functions of libc that allocate what isThreadData() and isNameService() tell. The first
// goes by whichever name libc gives it; the second has no name outside libc, but stands before one
// that has.
#include "shim/libc_state.h"

#include <dlfcn.h>

namespace tidepool {

// Beyond every address, and before every address, until they are known.
constinit uintptr_t thread_data_caller = UINTPTR_MAX;
constinit uintptr_t name_service_caller = 0;

void findLibcState() {
  if (void* found = dlsym(RTLD_NEXT, "pthread_setspecific")) {
    thread_data_caller = reinterpret_cast<uintptr_t>(found);
  }
  if (void* found = dlsym(RTLD_NEXT, "__nss_database_get")) {
    name_service_caller = reinterpret_cast<uintptr_t>(found);
  }
}

}  // namespace tidepool
